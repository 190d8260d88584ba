"""The forward by warp groups that specialise, as PTX, on cards of few processors: programs take several blocks."""

import re
from dataclasses import replace
from functools import partial

import pytest
import torch
from tests.kernels.planned import launching_nothing, planned, results, specs_of
from tests.tiers import every, sample
from tests.triton.specs import card

import weft
from weft.planning.families.hopper import CONFIGS
from weft.settings import interpreted

from .problems import AHEAD, ORDERS, Call, at_once, check, said_of, unreached
from .run import Way, emulated
from .test_controls import without, without_all
from .threads import EAGER
from .without import without_every, without_waits

pytestmark = pytest.mark.skipif(interpreted(), reason="Triton interprets, and compiles nothing")

FIXED = (("forward", CONFIGS["forward"]),)
BAND = Call(weft.causal() & weft.window(left=50), 300)  # heads share keys; the first query sees one
CALLS = {
    "causal window": BAND,
    "window": Call(weft.window(70, 30), 250, heads=(2, 2)),
    "dilated": Call(weft.dilated(30, 30, 3), 600, heads=(1, 1)),
    "two terms": Call(weft.causal() & (weft.periodic_keys(64) | weft.window(left=63)), 400, heads=(1, 1)),
    "two terms, unlike": Call(weft.causal() & (weft.window(left=40) | weft.global_tokens(4)), 400, heads=(1, 1)),
    "keys that no query sees": Call(weft.window(20, 20) & weft.padding([150]), 250, heads=(2, 1)),
    "short": Call(weft.causal() & weft.window(left=127), 400, heads=(2, 1)),
    "short, four tiles": Call(weft.window(100, 91), 600, heads=(1, 1)),
    "short, sinks": Call(weft.causal() & weft.window(left=63), 300, heads=(2, 2), options=("sinks",)),
    "full": Call(weft.full(), 300, heads=(1, 1)),
    "sinks": replace(BAND, options=("sinks",)),
    "sinks, one key": Call(weft.window(0, 0), 200, heads=(2, 1), options=("sinks",)),
    "sinks alone": Call(weft.window(20, 20) & weft.padding([150]), 250, heads=(2, 1), options=("sinks",)),
    "sinks, two terms": Call(
        weft.causal() & (weft.window(left=40) | weft.global_tokens(4)), 300, heads=(2, 2), options=("sinks",)
    ),
}


def few(processors):
    return replace(card("sm_90"), processors=processors)


def found_in(case, order=EAGER, processors=1, change=lambda name, text: text):
    """(names of kernels, results) of a forward."""
    with emulated(Way(90, order, change)) as names:
        return names, results(case, few(processors), FIXED, backward=False)


def loud(case):
    """Some queries have scores that no sum of weights holds."""
    q, k, v = case.tensors
    q = q.clone()
    q[:, :, 20:25] *= 200.0
    q[:, :, 140:] *= torch.where(torch.arange(q.shape[2] - 140) % 50 == 0, 200.0, 1.0).to(q.dtype)[:, None]
    return replace(case, tensors=(q, k, v))


@pytest.mark.parametrize("name", sample(CALLS, "keys that no query sees"))
def test_right_in_every_order(name):
    """Rows that go again beside rows that do not. Short runs have a kernel of their own."""
    case = loud(CALLS[name].case())
    names, found = found_in(case)
    short = name.startswith("short") or name == "two terms"
    assert [one.endswith("_short") for one in names if "_4_groups_" in one] == [short]
    check(case, found)
    for order in list(ORDERS.values())[: 2 if name == "causal window" else 1]:
        _, again = found_in(case, order)
        assert all(torch.equal(x, found[name]) for name, x in again.items())


@pytest.mark.more
def test_who_arrives_for_four_warps_waits_for_them():
    case = loud(CALLS["short, sinks"].case())
    _, found = found_in(case, AHEAD)
    check(case, found)


@pytest.mark.parametrize(
    "name, loads, last",
    every(
        6,
        [
            *(("causal window", range(16, 17), last) for last in (0, 12)),
            *((name, range(4), last) for name in ("short", "two terms") for last in (4, 16)),
        ],
    ),
)
def test_slow_groups_keep_what_they_read(name, loads, last):
    """loads: the warps that do."""
    case = CALLS[name].case()
    _, found = found_in(case, at_once(loads, last))
    check(case, found)


@pytest.mark.more
def test_rows_that_are_not_loud_keep_their_bits():
    """Whoever takes their block, and whoever else goes again."""
    case = BAND.case()
    _, found = found_in(case, processors=3)
    check(case, found)
    _, again = found_in(loud(case))
    rows = [i for i in range(140) if not 20 <= i < 25]
    assert torch.equal(again["out"][:, :, rows], found["out"][:, :, rows])


@pytest.mark.more
def test_heads_beside_tokens():
    """(B, S, H, D) in memory, several batch rows, as descriptors read and write them."""
    case = replace(BAND, heads=(4, 2)).case()
    case = replace(
        case, tensors=tuple(torch.cat([x, 2 * x]).transpose(1, 2).contiguous().transpose(1, 2) for x in case.tensors)
    )
    names, found = found_in(case, processors=3)
    assert [one for one in names if "_4_groups_" in one]
    check(case, found)


def test_barriers_of_short_runs_begin_without_waits():
    texts = {}
    found_in(CALLS["short"].case(), change=texts.setdefault)
    (text,) = (text for name, text in texts.items() if name.endswith("_short"))
    between = text[text.index("mbarrier.init") : text.rindex("mbarrier.init")]
    assert between.count("mbarrier.init") > 30
    assert "bar.sync" not in between


@pytest.mark.parametrize(
    "pattern", sample([weft.window(20, 20), weft.dilated(30, 30, 3)], weft.window(20, 20)), ids=str
)
def test_what_lies_in_keys_that_no_query_sees(pattern):
    """Results are as without them."""
    case = replace(BAND, pattern=pattern & weft.padding([150])).case()
    names, found = found_in(case)
    assert [one for one in names if "_4_groups_" in one]
    q, k, v = (x.clone() for x in case.tensors)
    for x in (k, v):
        x[:, :, 150:] = torch.nan
    _, again = found_in(replace(case, tensors=(q, k, v)))
    assert all(torch.equal(x, found[name]) for name, x in again.items())


@pytest.mark.parametrize(
    "call",
    [
        replace(BAND, options=("softcap",)),
        replace(BAND, options=("alibi_slopes",)),
        replace(BAND, pattern=weft.dilated(30, 30, 7)),
    ],
    ids=["softcap", "alibi", "places beyond the last token"],
)
def test_elsewhere_all_warps_do_the_same(call):
    with launching_nothing() as programs:
        results(call.case(), few(1), backward=False)
        if call.options:
            results(call.case(), few(1), FIXED, backward=False)
    found = specs_of(programs)
    assert found
    assert all(spec.groups == 0 and spec.rows < 256 for spec in found)


@pytest.mark.parametrize("made", sample(["odd", "expanded"], "odd"))
def test_tensors_that_descriptors_do_not_reach(made):
    case = unreached(BAND.case(), made)
    plan, *_ = planned(case, few(1), FIXED)
    assert plan.forward[0].plan.tiling.groups == 4
    assert plan.unspecialised("forward")[0].plan.tiling.groups == 0
    names, found = found_in(case)
    assert not any("groups" in one for one in names)
    check(case, found)


# ---- that this sees what is wrong ------------------------------------------------------------------------------------
CHANGES = {  # and what is said then
    "tiles are not given back": (partial(without_every, "mbarrier.arrive.shared::cta"), "nobody can go on"),
    "tiles are not waited for": (partial(without_waits, r"[^{]{0,1500}wgmma\.fence"), "is off|more arrivals|counted"),
    "no wait for products": (partial(without, "wgmma.wait_group"), "before the product .* is waited for"),
    "results are not fenced": (partial(without_all, "fence.proxy.async"), "fence"),
    "rows go again before they are written": (lambda text: text.replace("wait_group 0", "wait_group.read 0"), "is off"),
}


def wrong_with(change, call=BAND):
    """What is wrong with a changed kernel."""
    case = loud(call.case())
    return said_of(lambda order: check(case, found_in(case, order, change=lambda _, text: change(text))[1]))


@pytest.mark.parametrize("name", sample(CHANGES, "tiles are not given back", "no wait for products"))
def test_what_is_missing_is_seen(name):
    change, said = CHANGES[name]
    assert re.search(said, wrong_with(change))


@pytest.mark.more
@pytest.mark.parametrize("name", [name for name in CHANGES if name != "no wait for products"])  # of two, one is left
def test_what_short_runs_miss_is_seen(name):
    change, said = CHANGES[name]
    assert re.search(said, wrong_with(change, CALLS["short"]))
