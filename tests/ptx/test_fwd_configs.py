"""Forwards by warp groups in configurations that a call names: D=65 to 256, and float16, as PTX."""

from dataclasses import replace

import pytest
import torch
from tests.kernels.planned import results

import weft
from weft.kernels.gpu.compile.load import source_of
from weft.kernels.gpu.hopper import config
from weft.planning.families import hopper
from weft.settings import interpreted

from .problems import ORDERS, Call, check
from .run import Way, emulated
from .test_group_queries import few, loud
from .threads import EAGER

pytestmark = pytest.mark.skipif(interpreted(), reason="Triton interprets, and compiles nothing")

BAND = weft.causal() & weft.window(left=50)
HALF, WIDE, WIDEST = torch.float16, (128, 128), (256, 256)
CALLS = {
    "128": Call(BAND, 300, WIDE, heads=(2, 1)),
    "128, two terms": Call(weft.causal() & (weft.window(left=40) | weft.global_tokens(4)), 200, WIDE, heads=(1, 1)),
    "128, causal": Call(weft.causal(), 700, WIDE, heads=(2, 1)),
    "128, full": Call(weft.full(), 600, WIDE, heads=(1, 1)),
    "128, window": Call(weft.window(300, 150), 700, WIDE, heads=(1, 1)),
    "128, documents": Call(weft.causal() & weft.documents([30, 200, 1, 129, 240]), 600, WIDE, heads=(2, 1)),
    "128, chunks": Call(weft.causal() & weft.chunks(200), 600, WIDE, heads=(1, 1)),
    "128, prefix": Call(weft.causal() | weft.prefix(150), 600, WIDE, heads=(1, 1)),
    "128, dilated": Call(weft.dilated(30, 30, 3), 600, WIDE, heads=(1, 1)),
    "128, keys that no query sees": Call(weft.window(20, 20) & weft.padding([150]), 250, WIDE, heads=(2, 1)),
    "128, sinks": Call(BAND, 150, WIDE, heads=(1, 1), options=("sinks",)),
    "80": Call(BAND, 150, (80, 80), heads=(1, 1)),
    "96 and 72": Call(weft.window(20, 20), 150, (96, 72), heads=(1, 1)),
    "64, float16": Call(BAND, 300, (64, 64), HALF, heads=(2, 1)),
    "64, float16, sinks": Call(BAND, 150, (64, 64), HALF, heads=(1, 1), options=("sinks",)),
    "128, float16": Call(BAND, 150, WIDE, HALF, heads=(1, 1)),
    "256": Call(BAND, 300, WIDEST, heads=(2, 1)),
    "256, two terms": Call(weft.causal() & (weft.window(left=40) | weft.global_tokens(4)), 200, WIDEST, heads=(1, 1)),
    "256, causal": Call(weft.causal(), 500, WIDEST, heads=(2, 1)),
    "256, documents": Call(weft.causal() & weft.documents([30, 200, 1, 129, 240]), 600, WIDEST, heads=(2, 1)),
    "256, keys that no query sees": Call(weft.window(20, 20) & weft.padding([150]), 250, WIDEST, heads=(2, 1)),
    "256, sinks": Call(BAND, 150, WIDEST, heads=(1, 1), options=("sinks",)),
    "256, float16": Call(BAND, 150, WIDEST, HALF, heads=(1, 1)),
    "192": Call(BAND, 150, (192, 192), heads=(1, 1)),
}


def named(call):
    """The configuration of a call: chosen at D=128 and 256 in bfloat16 alone, others have to name it."""
    wide = max(call.dims)
    return hopper.CONFIGS["forward"] if wide <= 64 else hopper.WIDE if wide <= 128 else hopper.WIDEST


def found_in(case, tiling, order=EAGER):
    """(names of kernels, results) of a forward."""
    with emulated(Way(90, order, lambda name, text: text)) as names:
        return names, results(case, few(1), (("forward", tiling),), backward=False)


@pytest.mark.more  # make test has kernels of the same family in test_group_queries
@pytest.mark.parametrize("name", CALLS)
def test_right_in_every_order(name):
    """Rows that go again beside rows that do not."""
    call = CALLS[name]
    tiling, case = named(call), loud(call.case())
    names, found = found_in(case, tiling)
    assert any(f"_{tiling.groups}_groups_" in one for one in names)
    check(case, found)
    _, again = found_in(case, tiling, ORDERS["late, warps reversed"])
    assert all(torch.equal(x, found[name]) for name, x in again.items())


@pytest.mark.more
@pytest.mark.parametrize("name", ["64, float16", "128, float16"])
def test_the_largest_score_so_far_may_be_taken_off(name, monkeypatch):
    """No row goes again then."""
    monkeypatch.setitem(config.ROW_MAX, "float16", "online")
    source_of.cache_clear()
    call = CALLS[name]
    case = loud(call.case())
    _, found = found_in(case, named(call))
    source_of.cache_clear()
    check(case, found)


@pytest.mark.more
def test_rows_without_a_key_in_the_first_tile():
    """Of a consumer's rows some see no key of its first tile: what is taken off theirs comes of a later one."""
    call = replace(CALLS["64, float16"], pattern=weft.causal() & weft.window(left=10), tokens=200)
    case = loud(call.case())
    _, found = found_in(case, named(call))
    check(case, found)


@pytest.mark.more
def test_a_row_whose_first_tile_has_one_low_score():
    """What is taken off is far below its other scores: weights are large, and float16 holds them."""
    call = CALLS["64, float16"]
    case = call.case()
    q, k, v = (torch.zeros_like(x) if n < 2 else x for n, x in enumerate(case.tensors))
    q[..., 0], k[..., 0] = 8.0, 2.0  # with the scale of D=64 scores are those of k
    k[..., 63, 0] = -5.0  # the only key of row 113 in its first tile
    low = replace(case, tensors=(q, k, v))
    _, found = found_in(low, named(call))
    check(low, found)


def test_nobody_chooses_what_is_only_offered_by_name():
    call = CALLS["80"]
    with emulated(Way(90, EAGER, lambda name, text: text)) as names:
        results(call.case(), few(1), backward=False)
    assert not any("groups" in one for one in names)
