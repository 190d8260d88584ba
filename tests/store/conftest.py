"""A store of one test."""

import pytest

from weft.store import Store

from .small import NO_LIMIT


@pytest.fixture
def kept(tmp_path):
    return Store(tmp_path / "cache", NO_LIMIT)
