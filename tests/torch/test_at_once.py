"""Gradients that take nothing but launches, found by one key and told what `gpu.backward` tells them."""

from types import SimpleNamespace
from unittest import mock

import pytest
import torch

import weft
from weft.kernels.options import Modifiers
from weft.settings import interpreted
from weft.torch import bind, eager, gpu
from weft.torch.launcher import Direct

from .fake_gpu import CPU, encoders, planned, pretended, tensors_of
from .test_bind import GIVEN, PLANS, STRIDED

pytestmark = pytest.mark.skipif(interpreted(), reason="kernels are told tensors, not addresses")

HOW, CALLED = Modifiers(0.1), weft.causal()


def ready_for(plan, given, deterministic=True):
    """`gpu.ready` of q, k, v, out, dout and lse that lie like these."""
    aligned = not any(x.data_ptr() & 15 for x in given)
    return gpu.ready(plan, HOW, tuple(x.stride() for x in given), aligned, deterministic, CPU)


def addresses(given):
    return [x.data_ptr() for x in given]


def turned(x):
    """Its tokens before its heads."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def moved(x):
    """Off 16 bytes."""
    return torch.zeros(x.numel() + 1, dtype=x.dtype)[1:].view(x.shape)


# ---- what is ready ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", [name for name in PLANS if name != "sums of several launches"])
def test_launches_are_told_the_same(name):
    plan = PLANS[name]()
    q, k, v, out, dout, lse = given = tensors_of(plan)
    named = dict(zip(GIVEN, given, strict=True))
    with pretended() as launched:
        *gradients, _ = gpu.backward((q, k, v), (out, dout, lse, None), plan, HOW, True, False)
        usual = launched.named(**named, **dict(zip(("dq", "dk", "dv"), gradients, strict=True)))
        launched.clear()
        found = ready_for(plan, given)
        assert found is not None
        again = found.at_addresses(addresses(given))
        assert launched.named(**named, **dict(zip(("dq", "dk", "dv"), again, strict=True))) == usual
    assert usual
    assert [(x.shape, x.stride(), x.dtype) for x in again] == [(x.shape, x.stride(), x.dtype) for x in gradients]


MORE = {
    "sums of several launches": planned(STRIDED, m=4096, dim=128),
    "rows that no launch writes": planned(
        weft.causal() & weft.window(left=300) & ~weft.global_tokens(64, columns=False)
    ),
    "types that a switch changes": planned(weft.causal(), dtype="float32"),
}


@pytest.mark.parametrize("name", MORE)
def test_what_is_more_than_launches(name):
    plan = MORE[name]
    with pretended():
        assert ready_for(plan, tensors_of(plan)) is None


def test_sums_on_what_begins_as_nothing():
    """Few heads share keys' tiles out where the order of sums is free."""
    plan = planned(CALLED, heads=(1, 1), m=4096)
    with pretended():
        assert ready_for(plan, tensors_of(plan), deterministic=True) is not None
        assert ready_for(plan, tensors_of(plan), deterministic=False) is None


def test_rows_of_lse_apart():
    plan = planned(CALLED)
    *saved, lse = tensors_of(plan)
    with pretended():
        assert ready_for(plan, [*saved, lse.mT.contiguous().mT]) is None
        assert ready_for(plan, [*saved, lse]) is not None


@pytest.mark.parametrize("at", range(6), ids=GIVEN)
def test_what_is_off_16_bytes_goes_the_usual_way(at):
    """Another program, which may have to copy lse first."""
    plan = planned(CALLED)
    given = tensors_of(plan)
    given[at] = moved(given[at])
    with pretended():
        assert ready_for(plan, given) is None


@pytest.mark.parametrize("state", [{"current_gpu": lambda: 1}, {"watched": lambda: True}])
def test_moments_that_are_not_for_it(state):
    plan = planned(CALLED)
    given = tensors_of(plan)
    with pretended() as launched:
        found = ready_for(plan, given)
        for name, value in state.items():
            with mock.patch.object(bind, name, value):
                assert found.at_addresses(addresses(given)) is None
        assert launched == []


@pytest.mark.parametrize("of_keys", [False, True])
@pytest.mark.parametrize("boxes", [False, True])
def test_kernels_that_only_triton_knows_to_launch(boxes, of_keys):
    """boxes: it is their descriptors that Triton encodes. of_keys: one of two kernels is such."""
    plan = planned(weft.causal() & weft.window(left=100), dim=64 if boxes else 128)

    def direct(kernel, found):
        known = of_keys and not kernel.source.name.startswith("dkdv")
        return Direct(print, (), found, encoders(found) if known else None) if known or found else None

    with pretended(direct=direct):
        assert (ready_for(plan, tensors_of(plan)) is None) == (not boxes or not of_keys)


# ---- through autograd ------------------------------------------------------------------------------------------------
def gradients(call, given, deterministic=True, **more):
    """What autograd is given of a call after its forward. more: dlse, sinks, slopes."""
    q, k, v, out, dout, lse = given
    kept = q, k, v, out, lse, more.get("sinks"), more.get("slopes")
    ctx = SimpleNamespace(saved_tensors=kept, call=call, deterministic=deterministic)
    with torch.no_grad():
        return eager.Recorded.backward(ctx, dout, more.get("dlse"))


def call_of(plan):
    return eager.Call(CALLED, "auto", plan, gpu, HOW)


def test_found_again_by_how_tensors_lie(monkeypatch):
    """Whichever tensor is laid out otherwise; off 16 bytes is off, whichever is, and takes no short way."""
    monkeypatch.setattr(eager, "LAID_OUT", 100)
    usual, seen = bind.Bound.at_addresses, []
    monkeypatch.setattr(bind.Bound, "at_addresses", lambda self, at: seen.append(self) or usual(self, at))
    plan = planned(CALLED)
    given, call = tensors_of(plan), call_of(plan)
    layouts = [given, *([*given[:i], turned(given[i]), *given[i + 1 :]] for i in range(5))]
    layouts += [[*map(turned, given[:4]), *given[4:]], [*map(turned, given[:5]), given[5]]]
    off = [[*given[:i], moved(given[i]), *given[i + 1 :]] for i in range(6)]
    with pretended() as launched:
        for tensors in 2 * layouts:
            assert gradients(call, tensors)[3:] == (None,) * 4
        count = len(layouts)
        assert seen[:count] == seen[count:]
        assert len(set(seen)) == count == len(call.ready)
        for tensors in off:
            launched.clear()
            assert gradients(call, tensors)[3:] == (None,) * 4
            assert len(launched) == 2
    assert len(seen) == 2 * count
    assert [*call.ready.values()].count(None) == len(call.ready) - count == 1


def test_order_of_sums_is_asked_for_each_time():
    plan = planned(CALLED, heads=(1, 1), m=4096)
    given, call = tensors_of(plan), call_of(plan)
    with pretended():
        gradients(call, given, deterministic=True)
        gradients(call, given, deterministic=False)
    assert [ready is None for ready in call.ready.values()] == [False, True]


def test_no_end_of_layouts():
    plan = planned(CALLED)
    q, k, v, out, dout, lse = tensors_of(plan)
    call = call_of(plan)
    with pretended():
        for extra in range(eager.LAID_OUT + 2):
            wide = torch.zeros(*dout.shape[:3], 64 + 8 * extra, dtype=dout.dtype)[..., :64]
            gradients(call, [q, k, v, out, wide, lse])
            assert len(call.ready) == 1 + extra % eager.LAID_OUT


@pytest.mark.parametrize("more", ["dlse", "sinks", "slopes"])
def test_calls_with_more_to_do(more):
    plan = planned(CALLED)
    given = tensors_of(plan)
    value = torch.zeros_like(given[5]) if more == "dlse" else torch.ones(plan.problem.q_heads)
    with pretended(), mock.patch.object(eager, "gradients", return_value=("dq", "dk", "dv", "dsinks", [])) as usual:
        assert gradients(call_of(plan), given, **{more: value}) == ("dq", "dk", "dv", "dsinks", None, None, None)
        assert usual.call_count == 1
        assert gradients(call_of(plan), given)[3:] == (None,) * 4
        assert usual.call_count == 1


@pytest.mark.parametrize("layout", ["contiguous", "one head of keys, tokens first"])
def test_a_graph_keeps_what_it_replays(layout):
    """A warm call may be captured, whatever caches have forgotten, and whatever went before."""
    plan = planned(CALLED, heads=(4, 1))
    given, call = tensors_of(plan), call_of(plan)
    other = given if layout == "contiguous" else [given[0], turned(given[1]), *given[2:]]
    with pretended() as launched, mock.patch.object(bind, "CAPTURED", set()) as captured:
        gradients(call, given)
        gradients(call, other)
        gpu.bound_backward.cache_clear()
        assert not captured
        launched.clear()
        with mock.patch.object(bind, "is_capturing", lambda: True):
            gradients(call, other)
        assert len(launched) == 2
        assert captured == {[*call.ready.values()][-1]}
