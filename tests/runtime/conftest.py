"""Every test has a store of its own, and plans that nobody kept."""

import pytest

from weft import caching


@pytest.fixture(autouse=True)
def _alone(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    caching.clear()
    yield
    caching.clear()
