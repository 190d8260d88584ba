"""benchmarks/fused_search.py without a GPU: shares of parts are all candidates, and parts are joined fairly."""

from importlib import import_module
from pathlib import Path

import pytest

HERE = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def search(monkeypatch):
    pytest.importorskip("triton", reason="tilings are of its kernels")
    monkeypatch.syspath_prepend(str(HERE))
    return import_module("fused_search")


def part(ours, times, again, measured=18):
    """Rows as a part writes them."""
    begin = {"size": "(16, 2048)", "card": "a card", "torch": "2"}
    rows = [begin | {"part": "ours", "candidate": ours, "us": "1", "measured": str(measured), "seconds": "9.5"}]
    rows += [begin | {"part": "all", "candidate": name, "us": str(us)} for name, us in times.items()]
    return rows + [begin | {"part": "again", "candidate": name, "us": str(us)} for name, us in again]


def test_each_candidate_is_in_one_share(search, monkeypatch):
    monkeypatch.setattr(search, "tilings", lambda found: found)
    found = [[None, 1, 2, 3, 4], [None, 5]]
    shares = [search.share_of(found, part, 3) for part in range(3)]
    assert sorted(str(one) for some, _ in shares for one in some) == ["1", "2", "3", "4", "None"]
    assert all(others == [None, 5] for _, others in shares)


def test_parts_are_compared_on_their_own_card(search):
    slow = part("a", {"a": 210, "b": 220}, [("a", 200), ("a", 210), ("a", 300), ("b", 220)])
    fast = part("a", {"c": 99, "d": 120}, [("a", 102), ("c", 100)], measured=20)
    row = search.joined([slow, fast])
    assert row["over_best"] == "1.0200" and row["candidates"] == 4 and row["measured"] == 20
    assert row["choice"] == "a" and row["parts"] == 2 and row["seconds"] == 9.5
    assert search.joined([slow, part("c", {"c": 99}, [("c", 99)])])["choice"] == "a | c"
