"""benchmarks/options.py at small sizes without a GPU: every way of weft computes what its law says."""

from importlib import import_module
from pathlib import Path

import pytest

HERE = Path(__file__).parents[2] / "benchmarks"
OURS = ("weft", "identity", "none", "relative", "dropout", "softcap", "alibi", "bhsd", "bshd", "lengths", "sums")


@pytest.fixture
def options(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))
    return import_module("options")


@pytest.mark.more
@pytest.mark.parametrize("name", ["options window_pm256", "options causal", "layouts causal", "packed drawn", "t5"])
def test_ways_of_weft_follow_their_laws(options, name):
    table = options.tables("cpu", True)[name]()
    ways = [way for way in table.ways if way.who.startswith(OURS)]
    assert ways
    for way in ways:
        assert options.Ready(table, way).off() < 1e-4, way.who


def test_a_wrong_law_is_seen(options):
    table = options.tables("cpu", True)["layouts causal"]()
    table.law.live = lambda b, q, k: k <= q + 1
    assert options.Ready(table, table.ways[0]).off() > options.OFF


def test_each_way_that_compiles_has_a_process(options):
    found = [job for jobs in options.shares(True, ["options"]) for job in jobs]
    assert len(found) == len(set(found)) == 18
