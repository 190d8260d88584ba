"""Every test has a store of its own, and plans that nobody kept."""

import pytest

from weft.runtime import pipeline


@pytest.fixture(autouse=True)
def _alone(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    pipeline.compiled.cache_clear()
    pipeline.arrived.cache_clear()
    yield
    pipeline.compiled.cache_clear()
    pipeline.arrived.cache_clear()
