"""dK and dV by warp groups that specialise, as PTX, on cards of few processors, whose programs take several blocks."""

import re
from dataclasses import replace
from functools import partial
from unittest import mock

import pytest
import torch
from tests.kernels.planned import launching_nothing, planned, results, specs_of, without_groups
from tests.tiers import sample
from tests.triton.specs import card

import weft
from weft.planning.families import fused_backward
from weft.settings import interpreted

from . import problems
from .problems import Call, at_once, check, check_in_every_order, said_of
from .run import Way, emulated
from .test_controls import without, without_all
from .without import without_every, without_waits

pytestmark = pytest.mark.skipif(interpreted(), reason="Triton interprets, and compiles nothing")

PAIRS = (2, 2)  # heads: of queries as many as of keys
BAND = Call(weft.causal() & weft.window(left=50), 300, heads=PAIRS)
CALLS = {
    "causal window": BAND,
    "float16": replace(BAND, dtype=torch.float16),
    "window": Call(weft.window(70, 30), 250, heads=PAIRS),
    "dilated": Call(weft.dilated(30, 30, 3), 768, heads=(1, 1)),
    "full": Call(weft.full(), 200, heads=(1, 1)),
}
GPU = card("sm_90")
FEW = replace(GPU, processors=1)


@pytest.fixture(autouse=True)
def _no_other_groups(monkeypatch):
    """The forward is of the usual kernels here, and gradients are of two: see test_group_queries and test_fused."""
    monkeypatch.setattr(fused_backward, "has_kernel", lambda *_: False)
    with without_groups("forward"):
        yield


DEALT = [*((name, 1) for name in CALLS), ("causal window", 3), ("dilated", 3)]  # to so many processors


@pytest.mark.parametrize("name, processors", sample(DEALT, ("full", 1)))
def test_right_in_every_order(name, processors):
    few = replace(GPU, processors=processors)
    with mock.patch.object(problems, "card", lambda _: few):
        names = check_in_every_order(CALLS[name].case(), Way(90))
    assert [one for one in names if "_2_groups_" in one]


@pytest.mark.parametrize("last", sample([0, 4], 0))
def test_slow_groups_keep_what_they_read(last):
    case = BAND.case()
    with emulated(Way(90, at_once(range(8, 12), last))):
        check(case, results(case, FEW))


def test_what_queries_hold_that_see_no_key():
    """Keys of their own tiles are as they would be without them."""
    pattern = weft.window(20, 20) & weft.padding([150])
    case = Call(pattern, 250, heads=(1, 1)).case()
    q, k, v = case.tensors
    with emulated(Way(90)) as names:
        found = results(case, FEW)
        loud = q.clone()
        loud[:, :, 192:] = torch.nan
        again = results(replace(case, tensors=(loud, k, v)), FEW)
    assert any("_2_groups_" in one for one in names)
    for name in ("dk", "dv"):
        assert torch.equal(again[name][:, :, :192], found[name][:, :, :192])


@pytest.mark.parametrize(
    "call",
    [
        replace(BAND, options=("softcap",)),
        replace(BAND, options=("alibi_slopes",)),
        replace(BAND, heads=(4, 2)),
        replace(BAND, dims=(128, 128)),
        replace(BAND, dtype=torch.float32),
        replace(BAND, pattern=weft.causal()),
        replace(BAND, pattern=weft.longformer(20, global_tokens=9)),
        replace(BAND, pattern=weft.per_head([weft.window(9, 9), weft.window(20, 20)])),
        replace(BAND, pattern=weft.documents([100, 60, 140])),
    ],
    ids=["softcap", "alibi", "heads share keys", "128", "float32", "causal", "several", "by head", "documents"],
)
def test_elsewhere_all_warps_do_the_same(call):
    """And never in tiles that only groups are good at."""
    with launching_nothing() as programs:
        results(call.case(), FEW)
    (keys, *_) = [spec for spec in specs_of(programs) if spec.of_keys]
    assert keys.groups == 0
    assert (keys.rows, keys.cols, keys.warps) != (128, 64, 8)


@pytest.mark.more
def test_strides_that_are_no_multiples_of_16_bytes():
    case = BAND.case()
    plan, *_ = planned(case, FEW)
    assert plan.transposed[0].plan.tiling.groups == 2
    assert plan.unspecialised("dkdv")[0].plan.tiling.groups == 0
    odd = tuple(torch.cat([x, x], -1)[..., 1:65] for x in case.tensors)
    with emulated(Way(90)) as names:
        found = results(replace(case, tensors=odd), FEW)
    assert not any("groups" in one for one in names)
    check(replace(case, tensors=odd), found)


# ---- that this sees what is wrong ------------------------------------------------------------------------------------
CHANGES = {  # and what is said then
    "tiles are not given back": (partial(without_every, "mbarrier.arrive.shared::cta"), "nobody can go on"),
    "copies are not waited for": (partial(without_waits, r"[^{]{0,1500}wgmma\.fence"), "is off|more arrivals"),
    "no wait for products": (partial(without, "wgmma.wait_group"), "before the product .* is waited for"),
    "nobody says that copies came": (partial(without_all, "cp.async.mbarrier.arrive.noinc"), "nobody can go on"),
}


def wrong_with(change):
    """What is wrong with a changed kernel."""
    case = BAND.case()

    def attempt(order):
        with emulated(Way(90, order, lambda name, text: change(text) if "groups" in name else text)):
            check(case, results(case, FEW))

    return said_of(attempt)


@pytest.mark.parametrize("name", sample(CHANGES, "tiles are not given back"))
def test_what_is_missing_is_seen(name):
    change, said = CHANGES[name]
    assert re.search(said, wrong_with(change))
