"""Launches of the backward that overlap: who may begin early, and what waits before it reads."""

import inspect

import pytest
from tests.tiers import every

from weft.kernels.gpu.compile.load import source_of
from weft.kernels.gpu.hopper import bwd_dkdv
from weft.settings import interpreted

from .first_language import of_triton, read_before
from .resources import TARGETS
from .specs import CALLS, DIRECTIONS, has_room_for_dq, specs_towards

pytestmark = pytest.mark.skipif(interpreted(), reason="launches follow each other there")

WAITS, BEGINS = "griddepcontrol.wait", "griddepcontrol.launch_dependents"
# What launches before leave: those of other keys, and that of queries.
SUMS, LEFT = {"Sums"}, {"Stats", "Delta"}


def sources(call, target):
    for direction in DIRECTIONS:
        if direction != "one kernel" or has_room_for_dq(CALLS[call]):
            yield from ((spec, source_of(spec)) for spec in specs_towards(CALLS[call], direction, target))


def sources_by_warps(call):
    return [(spec, source) for spec, source in sources(call, "sm_90") if not source.gluon]


@pytest.mark.parametrize("call", CALLS)
def test_who_may_begin_early(call):
    """Not what follows launches that are not ours: these may have let it begin before they end."""
    for spec, source in sources(call, "sm_90"):
        assert source.early == (spec.direction == "dkdv")


@pytest.mark.parametrize("call", every(24, CALLS))
def test_who_waits_and_lets_others_begin(call):
    for spec, source in sources_by_warps(call):
        text = of_triton(source, TARGETS["sm_90"])
        assert (WAITS in text) == source.early
        assert (BEGINS in text) == (spec.direction in ("dq", "delta") or (source.early and spec.accumulate))
        if source.early:
            read = read_before(text, source, WAITS)
            unread = (
                set() if spec.adds_shared else LEFT
            )  # the launch before one that joins has waited for that of queries
            assert not read & (unread | SUMS), read
            assert {"Q", "DOut"} | (SUMS if spec.adds_shared else set()) <= read_before(text, source, "tt.return")
            assert BEGINS not in text.split(WAITS)[0], "the next one trusts this one to have waited"


def test_a_producer_waits_before_it_reads():
    loads = inspect.getsource(bwd_dkdv.producer.fn)
    assert loads.index("gdc_wait()") < loads.index("Stats +")


@pytest.mark.parametrize("target", ["sm_80", "gfx942"])
@pytest.mark.parametrize("call", every(6, CALLS))
def test_elsewhere_launches_follow_each_other(call, target):
    for spec, source in sources(call, target):
        assert not source.early and not spec.chained
