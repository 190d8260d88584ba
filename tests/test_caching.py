"""Caches that are emptied together: how much plans may hold, and what is said of it."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft import caching
from weft.errors import OptionError

MIB = 1 << 20


@pytest.fixture
def emptied(monkeypatch):
    """How often all was forgotten, by caches of this test alone."""
    monkeypatch.setattr(caching, "_kept", caching._Kept())
    times = []
    caching.emptied_by(lambda: times.append(1))
    return times


@given(sizes=st.lists(st.integers(0, 12 * MIB), max_size=30), room=st.integers(1, 20))
def test_no_more_is_held_than_there_is_room_for(sizes, room):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEFT_PLANS_MIB", str(room))
        patch.setattr(caching, "_kept", caching._Kept(warned=True))
        held = []
        caching.emptied_by(held.clear)
        for size in sizes:
            before = [*held]
            caching.grew(size)
            if size >= caching.SMALL:
                assert bool(before and not held) == (sum(before) > 0 and sum(before) + size > room * MIB)
                held.append(size)
                assert len(held) == 1 or sum(held) <= room * MIB


def test_small_plans_are_not_counted(emptied, monkeypatch):
    monkeypatch.setenv("WEFT_PLANS_MIB", "1")
    for _ in range(5):
        caching.grew(caching.SMALL - 1)
    assert not emptied


def test_one_plan_that_is_larger_than_the_room_is_kept(emptied, monkeypatch):
    monkeypatch.setenv("WEFT_PLANS_MIB", "1")
    caching.grew(9 * MIB)
    assert not emptied


def test_it_is_said_once(emptied, monkeypatch):
    monkeypatch.setenv("WEFT_PLANS_MIB", "3")
    caching.grew(2 * MIB)
    with pytest.warns(RuntimeWarning, match="more than 3 MiB.* Set WEFT_PLANS_MIB to keep more"):
        caching.grew(2 * MIB)
    caching.grew(2 * MIB)
    assert len(emptied) == 2


def test_clear_forgets_what_was_cached(emptied):
    @caching.cached(4)
    def found(x):
        return [x]

    first = found(1)
    assert found(1) is first
    caching.clear()
    assert found(1) is not first
    assert emptied == [1]


def test_a_bad_limit_is_refused_before_anything_is_forgotten(emptied, monkeypatch):
    monkeypatch.setenv("WEFT_PLANS_MIB", "plenty")
    with pytest.raises(OptionError, match="WEFT_PLANS_MIB=plenty"):
        caching.grew(2 * MIB)
    assert not emptied


def test_the_oldest_goes_and_all_go_together(emptied):
    kept = caching.Recent(3)
    for key in (1, 2, 3, 2, 4):
        assert kept.keep(key, str(key)) == str(key)
    assert kept == {2: "2", 3: "3", 4: "4"}
    caching.clear()
    assert not kept and emptied


def test_several_threads_keep_no_more():
    kept = caching.Recent(5)
    with ThreadPoolExecutor(4) as go:
        list(go.map(lambda key: kept.keep(key, key), range(400)))
    assert len(kept) == 5
