"""Launches of the backward that overlap: who may begin early, and what waits before it reads."""

import inspect

import pytest

from weft.kernels.gpu.compile.load import source_of
from weft.kernels.gpu.hopper import bwd_dkdv
from weft.settings import interpreted

from .specs import CALLS, DIRECTIONS, has_room_for_dq, specs_towards

pytestmark = pytest.mark.skipif(interpreted(), reason="launches follow each other there")

WAITS, BEGINS = "gdc_wait()", "gdc_launch_dependents()"
SUMS = ("_left[:, None] +",)  # of the launches of keys before
LEFT = (*SUMS, "Stats +", "Delta +", "atomic_add")  # and of that of queries; or what it sets to zero, and others add to


def sources(call, target):
    for direction in DIRECTIONS:
        if direction != "one kernel" or has_room_for_dq(CALLS[call]):
            yield from ((spec, source_of(spec)) for spec in specs_towards(CALLS[call], direction, target))


@pytest.mark.parametrize("call", CALLS)
def test_who_begins_early(call):
    """Not what follows launches that are not ours: these may have let it begin before they end."""
    for spec, source in sources(call, "sm_90"):
        assert source.early == (spec.direction == "dkdv")
        assert (BEGINS in source.text) == (spec.direction in ("dq", "delta") or (source.early and spec.accumulate))


@pytest.mark.parametrize("call", CALLS)
def test_nothing_is_read_before_the_wait(call):
    for spec, source in sources(call, "sm_90"):
        if spec.groups and spec.of_keys:  # which waits where it loads
            assert "CHAINED=True" in source.text
            loads = inspect.getsource(bwd_dkdv.producer.fn)
            assert loads.index(WAITS) < loads.index("Stats +")
            continue
        before = source.text.split(WAITS)[0]
        assert (before == source.text) == (spec.direction != "dkdv")
        if source.early:
            read = SUMS if spec.joins else LEFT  # the launch before one that joins has waited for that of queries
            assert not [name for name in read if name in before]
            assert BEGINS not in before, "the next one trusts this one to have waited"


@pytest.mark.parametrize("target", ["sm_80", "gfx942"])
@pytest.mark.parametrize("call", CALLS)
def test_elsewhere_launches_follow_each_other(call, target):
    for _, source in sources(call, target):
        assert not source.early
        assert "gdc" not in source.text
