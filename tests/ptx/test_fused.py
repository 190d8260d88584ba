"""All gradients of a short window in one walk, as PTX, on cards of few processors: programs take several runs."""

import re
from dataclasses import replace
from functools import partial

import pytest
import torch
from tests.kernels.planned import launching_nothing, planned, results, specs_of
from tests.tiers import sample
from tests.triton.specs import card

import weft
from weft.planning.families import fused_backward
from weft.settings import interpreted

from .problems import AHEAD, ORDERS, Call, at_once, check, said_of, unreached
from .run import Way, emulated
from .test_controls import without_all
from .threads import EAGER
from .without import without_every

pytestmark = pytest.mark.skipif(interpreted(), reason="Triton interprets, and compiles nothing")

LOADS = range(4)  # warps
PLAIN = {"with_lse": False}  # lse has no gradient, as it has elsewhere
CAUSAL = Call(weft.causal() & weft.window(left=127), 260, heads=(2, 2), more=PLAIN)
CALLS = {
    "causal window": CAUSAL,
    "a side each": Call(weft.window(64, 64), 200, heads=(1, 1), more=PLAIN),
    "uneven, heads that share keys": Call(weft.window(30, 60), 200, heads=(3, 1), more=PLAIN),
    "later keys alone": Call(weft.window(0, 128), 190, heads=(1, 1), more=PLAIN),
    "shorter than a tile": Call(weft.causal() & weft.window(left=5), 40, heads=(2, 1), more=PLAIN),
    "a gradient of lse": Call(weft.window(20, 30), 200, heads=(2, 1)),
    "sinks": Call(weft.causal() & weft.window(left=127), 150, heads=(2, 1), options=("sinks",), more=PLAIN),
    "sinks and a gradient of lse": Call(weft.window(64, 64), 130, heads=(2, 2), options=("sinks",)),
}


@pytest.fixture(autouse=True)
def _always(monkeypatch):
    """Whatever two kernels would take."""
    monkeypatch.setattr(fused_backward, "window_seconds", lambda *_: 0.0)


def found_in(case, order=EAGER, processors=1, change=lambda name, text: text):
    """(names of kernels, results)"""
    with emulated(Way(90, order, change)) as names:
        return names, results(case, replace(card("sm_90"), processors=processors))


def walks(names):
    return [name for name in names if name.startswith("fused")]


@pytest.mark.parametrize("name", sample(CALLS, "a side each", "shorter than a tile"))
def test_right_in_every_order(name):
    case = CALLS[name].case()
    names, found = found_in(case)
    assert len(walks(names)) == 1
    assert not [name for name in names if name.startswith(("dq", "dkdv"))]
    check(case, found)
    for order in list(ORDERS.values())[: 2 if name == "causal window" else 1]:
        _, again = found_in(case, order)
        assert all(torch.equal(x, found[name]) for name, x in again.items())


@pytest.mark.parametrize("last", sample([4, 8, 12]))
def test_slow_groups_keep_what_they_read(last):
    """Whichever it is, to the end of a run, where tiles of keys are given back to the next."""
    case = CALLS["sinks"].case()
    _, found = found_in(case, at_once(LOADS, last))
    check(case, found)


def test_who_arrives_for_four_warps_waits_for_them():
    case = CALLS["sinks"].case()
    _, found = found_in(case, AHEAD)
    check(case, found)


@pytest.mark.more
def test_heads_beside_tokens():
    """(B, S, H, D) in memory, several batch rows, and runs that other programs take."""
    case = replace(CALLS["uneven, heads that share keys"], tokens=150, heads=(4, 2)).case()
    case = replace(
        case, tensors=tuple(torch.cat([x, 2 * x]).transpose(1, 2).contiguous().transpose(1, 2) for x in case.tensors)
    )
    names, found = found_in(case, processors=5)
    assert walks(names)
    check(case, found)


def kernels(case, **how):
    """The specs of what is launched; nothing runs."""
    with launching_nothing() as programs:
        results(case, card("sm_90"), **how)
    return [spec.direction for spec in specs_of(programs)]


@pytest.mark.parametrize(
    "call",
    [
        replace(CAUSAL, options=("softcap",)),
        replace(CAUSAL, options=("alibi_slopes",)),
        replace(CAUSAL, dtype=torch.float16),
        replace(CAUSAL, dims=(64, 32)),
    ],
    ids=["softcap", "alibi", "float16", "other head dimensions"],
)
def test_elsewhere_two_kernels_make_them(call):
    assert kernels(CAUSAL.case()) == ["forward", "fused"]
    assert kernels(call.case()) == ["forward", "dq", "dkdv"]


@pytest.mark.parametrize("made", ["odd", "expanded"])
def test_tensors_that_descriptors_do_not_reach(made):
    case = unreached(CAUSAL.case(), made)
    plan, *_ = planned(case, card("sm_90"))
    assert plan.fused_backward
    assert "fused" not in kernels(case)


# ---- that this sees what is wrong ------------------------------------------------------------------------------------
CHANGES = {  # and what is said then
    "nothing is given back": (partial(without_every, "mbarrier.arrive.shared::cta"), "nobody can go on"),
    "no fence before products and results": (partial(without_all, "fence.proxy.async"), "fence"),
    "results are not waited for": (partial(without_every, "cp.async.bulk.wait_group"), "is off|more arrivals"),
}


@pytest.mark.parametrize("name", sample(CHANGES, "nothing is given back"))
def test_what_is_missing_is_seen(name):
    (change, said), case = CHANGES[name], CAUSAL.case()

    def changed(kernel, text):
        return change(text) if walks([kernel]) else text

    assert re.search(said, said_of(lambda order: check(case, found_in(case, order, change=changed)[1])))


@pytest.mark.more
def test_who_does_not_wait_for_the_other_warps_is_seen():
    """Four warps leave what scores subtract, and the first of them says that it is there."""

    def changed(kernel, text):
        at_once = re.sub(r"bar\.sync\s+0, 128;(?=\n.*\n.*mbarrier\.arrive\.shared)", "", text)
        return at_once if walks([kernel]) else text

    case = CALLS["sinks"].case()
    check(case, found_in(case, change=changed)[1])
    with pytest.raises(AssertionError):
        check(case, found_in(case, AHEAD, change=changed)[1])
