"""Gradients of few keys beside a short window, as PTX: what their kernels add to those of one walk."""

import re
from dataclasses import replace
from functools import partial

import pytest
import torch
from tests.kernels.planned import results
from tests.tiers import sample
from tests.triton.specs import card

import weft
from weft.planning.families import fused_backward, sparse_keys
from weft.settings import interpreted

from .problems import ORDERS, Call, at_once, check, said_of
from .run import Way, emulated
from .test_controls import without_all
from .test_fused import PLAIN
from .threads import EAGER
from .without import without_every

pytestmark = pytest.mark.skipif(interpreted(), reason="Triton interprets, and compiles nothing")

LOADS = range(8, 10)  # warps
CAUSAL = weft.causal()
EVERY_FOURTH = CAUSAL & (weft.window(left=20) | weft.periodic_keys(step=4))
SMALL = Call(EVERY_FOURTH, 200, heads=(1, 1), more=PLAIN)
CALLS = {
    "two tiles of keys": Call(EVERY_FOURTH, 330, heads=(1, 1), more=PLAIN),
    "the first keys": Call(CAUSAL & (weft.window(left=20) | weft.prefix(7)), 150, heads=(2, 1), more=PLAIN),
    "more than a launch takes": Call(
        CAUSAL & (weft.window(left=9) | weft.periodic_keys(step=2)), 290, heads=(1, 1), more=PLAIN
    ),
    "sinks and a gradient of lse": Call(EVERY_FOURTH, 130, heads=(2, 1), options=("sinks",)),
}


@pytest.fixture(autouse=True)
def _always(monkeypatch):
    """Whatever two kernels would take."""
    monkeypatch.setattr(fused_backward, "window_seconds", lambda *_: 0.0)
    monkeypatch.setattr(sparse_keys, "seconds", lambda *_: 0.0)


def found_in(case, order=EAGER, processors=1, change=lambda name, text: text):
    """(names of kernels, results)"""
    with emulated(Way(90, order, change)) as names:
        return names, results(case, replace(card("sm_90"), processors=processors))


@pytest.mark.parametrize("name", sample(CALLS, "the first keys"))
def test_right_in_every_order(name):
    case = CALLS[name].case()
    names, found = found_in(case)
    launches = 2 if name == "more than a launch takes" else 1
    assert kinds(names)[-1 - 2 * launches :] == ["fused"] + ["sparse_keys", "reduce_partials"] * launches
    check(case, found)
    for order in list(ORDERS.values())[: 2 if name == "two tiles of keys" else 1]:
        _, again = found_in(case, order)
        assert all(torch.equal(x, found[name]) for name, x in again.items())


@pytest.mark.more
@pytest.mark.parametrize("last", [0, 4])
def test_slow_groups_keep_what_they_read(last):
    case = CALLS["the first keys"].case()
    _, found = found_in(case, at_once(LOADS, last))
    check(case, found)


@pytest.mark.more
def test_rows_without_the_window_are_not_walked():
    """Whole tiles of them, beside keys that all see: once walked as if they had it."""
    pattern = (weft.window(20, 20) & ~weft.global_tokens(64, columns=False)) | weft.prefix(8)
    case = Call(pattern, 150, heads=(1, 1), more=PLAIN).case()
    names, found = found_in(case)
    assert not {"fused", "sparse_keys"} & set(kinds(names))
    check(case, found)


def kinds(names):
    """Of the kernels of attention, without that of the sinks' gradient."""
    names = [name for name in names if name != "sink_gradient"]
    return [re.match("forward|fused|sparse_keys|reduce_partials|dq|dkdv", name)[0] for name in names]


@pytest.mark.more
def test_heads_beside_tokens():
    """(B, S, H, D) in memory, several batch rows, and parts that other programs take."""
    case = replace(SMALL, heads=(2, 1)).case()
    case = replace(
        case, tensors=tuple(torch.cat([x, 2 * x]).transpose(1, 2).contiguous().transpose(1, 2) for x in case.tensors)
    )
    names, found = found_in(case, processors=5)
    assert "sparse_keys" in kinds(names)
    check(case, found)


# ---- that this sees what is wrong ------------------------------------------------------------------------------------
CHANGES = {  # and what is said then
    "nothing is given back": (partial(without_every, "mbarrier.arrive.shared::cta"), "nobody can go on"),
    "no fence before products and results": (partial(without_all, "fence.proxy.async"), "fence"),
    "results are not waited for": (partial(without_every, "cp.async.bulk.wait_group"), "is off|more arrivals"),
    "numbers of queries are not waited for": (partial(without_all, "cp.async.mbarrier.arrive"), "nobody can go on"),
}


@pytest.mark.parametrize("name", sample(CHANGES, "no fence before products and results"))
def test_what_is_missing_is_seen(name):
    (change, said), case = CHANGES[name], replace(SMALL, tokens=330).case()

    def changed(kernel, text):
        return change(text) if kinds([kernel]) == ["sparse_keys"] else text

    assert re.search(said, said_of(lambda order: check(case, found_in(case, order, change=changed)[1])))
