"""Kernels of warp groups on grids of two and three axes, as PTX."""

from dataclasses import replace
from math import prod

import pytest
import torch
from tests.kernels.planned import results

import weft
from weft.planning.families.hopper import BOXED, SUMMED, WIDE
from weft.settings import interpreted

from .problems import ORDERS, Call, check
from .run import Way, emulated
from .test_group_queries import few, loud
from .threads import EAGER

pytestmark = pytest.mark.skipif(interpreted(), reason="Triton interprets, and compiles nothing")


NARROW = (64, 64)


def on_grid(shape, size, heads=(1, 1), options=(), dims=(128, 128), **more):
    return Call(weft.neighborhood(shape, size, **more), prod(shape), dims, heads=heads, options=options)


CALLS = {
    "2-D": on_grid((16, 24), (7, 9)),
    "2-D, boxes cut, heads share keys": on_grid((20, 37), (5, 9), (2, 1)),
    "2-D, causal": on_grid((16, 24), (7, 9), causal=(True, False), options=("sinks",)),
    "2-D, all keys": on_grid((8, 16), (8, 16)),
    "3-D": on_grid((4, 10, 18), (3, 6, 8), (2, 2)),
    "3-D, boxes cut": on_grid((6, 9, 18), (4, 5, 8)),
    "3-D, first axis cut": on_grid((5, 10, 18), (3, 6, 8)),
    "2-D, D=64": on_grid((40, 16), (7, 9), (2, 1), dims=NARROW),
    "2-D, D=64, boxes cut": on_grid((20, 37), (5, 9), dims=NARROW, options=("sinks",)),
    "3-D, D=64": on_grid((4, 10, 18), (3, 6, 8), dims=NARROW),
    "3-D, in steps": on_grid((6, 8, 16), (4, 6, 8), stride=(2, 4, 8)),
}


def found_in(case, order=EAGER, processors=1, backward=False):
    """(names of kernels, results)"""
    with emulated(Way(90, order)) as names:
        tiling = BOXED["forward"] if case.tensors[0].shape[-1] == NARROW[0] else WIDE
        sums = (("dkdv", SUMMED),) if tiling == WIDE else ()
        return names, results(case, few(processors), (("forward", tiling), *sums), backward=backward)


@pytest.mark.more  # make test has kernels of the same family in test_group_queries
@pytest.mark.parametrize("name", CALLS)
def test_right_in_every_order(name):
    """Rows that go again beside rows that do not."""
    case = loud(CALLS[name].case()) if CALLS[name].tokens > 200 else CALLS[name].case()
    names, found = found_in(case)
    groups = "_1_groups_" if CALLS[name].dims == NARROW else "_2_groups_"
    assert any(groups in one and "_box_" in one for one in names)
    check(case, found)
    _, again = found_in(case, ORDERS["late, warps reversed"])
    assert all(torch.equal(x, found[name]) for name, x in again.items())


def gradients_in(case, order=EAGER, processors=1):
    """(names of kernels, results), gradients by boxes."""
    with emulated(Way(90, order)) as names:
        return names, results(case, few(processors), tuple(BOXED.items()))


@pytest.mark.more
@pytest.mark.parametrize("name", [name for name, call in CALLS.items() if call.dims == NARROW])
def test_gradients_in_every_order(name):
    case = CALLS[name].case()
    names, found = gradients_in(case)
    assert {one.partition("_")[0] for one in names if "_1_groups_" in one and "_box_" in one} == set(BOXED)
    check(case, found)
    _, again = gradients_in(case, ORDERS["late, warps reversed"], processors=3)
    assert all(torch.equal(x, found[name]) for name, x in again.items())


@pytest.mark.more
@pytest.mark.parametrize("name, by_groups", [("2-D", True), ("3-D", True), ("3-D, first axis cut", False)])
def test_heads_beside_tokens(name, by_groups):
    """(B, S, H, D) in memory, two batch rows. On three axes these are one with the first axis, unless boxes end beyond
    it; then other kernels compute them.
    """
    case = replace(CALLS[name], heads=(2, 2)).case()
    case = replace(
        case, tensors=tuple(torch.cat([x, 2 * x]).transpose(1, 2).contiguous().transpose(1, 2) for x in case.tensors)
    )
    names, found = found_in(case, processors=3)
    assert any("_2_groups_" in one for one in names) == by_groups
    check(case, found)


@pytest.mark.more
@pytest.mark.parametrize("name", [name for name, call in CALLS.items() if call.dims != NARROW])
def test_all_gradients_in_every_order(name):
    """The order of sums is free, so dQ is only to be right."""
    case = replace(CALLS[name].case(), deterministic=False)
    names, found = found_in(case, backward=True)
    assert any("_box_" in one and "_with_dq_" in one for one in names)
    check(case, found)
    _, again = found_in(case, ORDERS["late, warps reversed"], backward=True)
    check(case, again)
