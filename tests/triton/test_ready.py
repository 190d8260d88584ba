"""Gradients that take nothing but launches: told what `run.backward` tells them, and left to it where there is more."""

from contextlib import ExitStack, contextmanager, nullcontext
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

import weft
from weft.kernels.options import Modifiers
from weft.kernels.triton import launch, ready, run
from weft.kernels.triton.launcher import Direct
from weft.planning.attention_plan import plan_attention
from weft.planning.problem import Problem
from weft.settings import interpreted
from weft.target import GPU
from weft.torch import eager

pytestmark = pytest.mark.skipif(interpreted(), reason="kernels are told tensors, not addresses")

HOW, STREAM = Modifiers(0.1), 7
STRIDED = weft.causal() & (weft.window(left=127) | weft.periodic_keys(128))


class Descriptors:
    """Of a launch: which tensors they are of, and where these are."""

    def __init__(self, boxes):
        self.boxes = boxes

    def of(self, addresses):
        return tuple(addresses[box.tensor] for box in self.boxes)


@contextmanager
def pretended(**state):
    """A list of (kernel, arguments) launched meanwhile on a GPU that is not there; state: what `launch` answers."""
    found = []

    class Kernel:
        def __init__(self, spec, device):
            self.spec = spec

    def direct(kernel, boxes):
        start = lambda *values: found.append((kernel.spec.name, values))  # noqa: E731
        return Direct(start, ("handles",), Descriptors(boxes) if boxes else None)

    empty = lambda size, stride, dtype: torch.empty_strided(size, stride, dtype=dtype)  # noqa: E731
    patched = {
        "current_gpu": lambda: 0, "is_capturing": lambda: False, "_hooked": lambda: False, "EMPTY": empty,
        "_stream_of": lambda: lambda gpu: STREAM, "direct": direct,
    }  # fmt: skip
    with ExitStack() as stack:
        for name, value in (patched | state).items():
            stack.enter_context(mock.patch.object(launch, name, value))
        for name, value in {"kernel_of": Kernel, "gpu_of": lambda device: 0, "on": lambda gpu: nullcontext()}.items():
            stack.enter_context(mock.patch.object(run, name, value))
        yield found


def planned(mask, heads=(4, 2), m=1024, dim=64, dtype="bfloat16"):
    return plan_attention(mask, Problem(2, *heads, m, m, dim, dim, dtype, "cuda"), GPU)


def tensors_of(plan, offset=0):
    """q, k, v, out, lse, dout"""
    p, dtype = plan.problem, getattr(torch, plan.problem.dtype)

    def rows(heads):
        size = p.batch, heads, p.m, p.d
        return torch.zeros(offset + torch.Size(size).numel(), dtype=dtype)[offset:].view(size)

    lse = torch.zeros(p.batch, p.q_heads, p.m)
    return [*map(rows, (p.q_heads, p.kv_heads, p.kv_heads, p.q_heads)), lse, rows(p.q_heads)]


def by_name(launched, given, gradients):
    """Launches with the names of tensors where they are told addresses; what lies elsewhere is made on the way."""
    named = dict(zip(("q", "k", "v", "out", "lse", "dout"), given, strict=True))
    named |= dict(zip(("dq", "dk", "dv"), gradients, strict=True))
    where = {x.data_ptr(): name for name, x in named.items()}
    return [(kernel, [where.get(x, x if x < 1 << 32 else "made") if isinstance(x, int) else x for x in values])
            for kernel, values in launched]  # fmt: skip


PLANS = {
    "one walk": lambda: planned(weft.causal() & weft.window(left=100)),
    "one walk of groups": lambda: planned(weft.causal() & weft.window(left=127), heads=(8, 1), m=2048),
    "few keys beside it": lambda: planned(STRIDED, heads=(16, 16), m=16384),
    "two kernels": lambda: planned(weft.causal(), dim=128),
    "two kernels, several terms": lambda: planned(weft.causal() & weft.window(left=300) | weft.prefix(20)),
    "float16": lambda: planned(weft.causal(), dtype="float16"),
}


@pytest.mark.parametrize("name, offset", [*((name, 0) for name in PLANS), ("one walk", 1), ("two kernels", 1)])
def test_launches_are_told_the_same(name, offset):
    """offset: elements from 16 bytes, for which other kernels are made."""
    plan = PLANS[name]()
    *saved, dout = given = tensors_of(plan, offset)
    q, k, v, out, lse = saved
    with pretended() as launched:
        *gradients, _ = run.backward((q, k, v), (out, dout, lse, None), plan, HOW, True, False)
        usual = by_name(launched, given, gradients)
        launched.clear()
        found = run.ready(saved, dout, plan, HOW, True)
        assert found is not None
        again = found([x.data_ptr() for x in given])
        assert by_name(launched, given, again) == usual
    assert usual
    assert [(x.shape, x.stride(), x.dtype) for x in again] == [(x.shape, x.stride(), x.dtype) for x in gradients]


def test_what_is_more_than_launches():
    """Rows that no launch writes, sums of several launches, types that a switch changes, rows of lse apart."""
    for plan in (
        planned(weft.causal() & weft.window(left=100) & ~weft.global_tokens(64, columns=False)),
        planned(STRIDED, m=4096, dim=128),
        planned(weft.causal(), dtype="float32"),
    ):
        *saved, dout = tensors_of(plan)
        with pretended():
            assert run.ready(saved, dout, plan, HOW, True) is None
    plan = planned(weft.causal())
    *saved, lse, dout = tensors_of(plan)
    with pretended():
        assert run.ready([*saved, lse.mT.contiguous().mT], dout, plan, HOW, True) is None
        assert run.ready([*saved, lse], dout, plan, HOW, True) is not None
    with pretended(EMPTY=None):
        assert run.ready([*saved, lse], dout, plan, HOW, True) is None


@pytest.mark.parametrize(
    "state", [{"current_gpu": lambda: 1}, {"is_capturing": lambda: True}, {"_hooked": lambda: True}]
)
def test_moments_that_are_not_for_it(state):
    plan = planned(weft.causal())
    *saved, dout = given = tensors_of(plan)
    with pretended():
        found = run.ready(saved, dout, plan, HOW, True)
    with pretended(**state) as launched:
        assert found([x.data_ptr() for x in given]) is None
        assert launched == []


def test_told_by_stream_and_addresses(monkeypatch):
    """Which are kept for when they come again, not without end."""
    monkeypatch.setattr(ready, "KEPT", 3)
    plan, stream = planned(weft.causal()), STREAM
    *saved, dout = tensors_of(plan)
    others = [tensors_of(plan) for _ in range(5)]
    with pretended(_stream_of=lambda: lambda gpu: stream) as launched:
        found = run.ready(saved, dout, plan, HOW, True)
        for given in ([*saved, dout], [*saved, dout], *others, [*saved, dout]):
            for stream in (STREAM, STREAM + 1):
                launched.clear()
                names = by_name(launched, given, found([x.data_ptr() for x in given]))
                assert [values[3] for _, values in names] == [stream] * 2
                assert [values[5:9] for _, values in names] == [["q", "k", "v", "out"], ["q", "k", "v", "dout"]]
                assert 0 < len(found.known) <= 3


def test_kernels_that_only_triton_knows_to_launch():
    plan = planned(weft.causal() & weft.window(left=100))
    *saved, dout = tensors_of(plan)
    for way in (None, Direct(None, ())):  # and descriptors that Triton encodes
        with pretended(direct=lambda kernel, boxes, way=way: way):
            run.prepared_gradients.cache_clear()
            assert run.ready(saved, dout, plan, HOW, True) is None
    run.prepared_gradients.cache_clear()


# ---- through autograd ------------------------------------------------------------------------------------------------
def recorded(plan, leaves):
    """What `Recorded` calls for a plan, as after a forward: (the call, gradients(dout, deterministic))."""
    call = eager.Call(weft.causal(), "auto", plan, run, HOW)

    def gradients(saved, dout, deterministic=True):
        ctx = SimpleNamespace(saved_tensors=(*saved, None, None), call=call, deterministic=deterministic)
        with torch.no_grad():
            return eager.Recorded.backward(ctx, dout, None)

    return call, gradients


def test_found_again_by_how_tensors_lie():
    plan = planned(weft.causal())
    *saved, dout = tensors_of(plan)
    odd = tensors_of(plan, offset=1)
    turned = dout.transpose(1, 2).contiguous().transpose(1, 2)
    rows = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in saved[:4]]
    with pretended() as launched:
        call, gradients = recorded(plan, saved)
        for number, (these, seed, deterministic) in enumerate(
            [
                (saved, dout, True),
                (saved, dout, False),
                (saved, turned, True),
                (odd[:5], odd[5], True),
                ([*rows, saved[4]], turned, True),
            ],
            start=1,
        ):
            for _ in range(2):
                found = gradients(these, seed, deterministic)
                assert len(call.ready) == number
                assert found[3:] == (None,) * 4
        kernels = {kernel for kernel, _ in launched}
        for extra in range(1, eager.LAID_OUT):
            wide = torch.zeros(*dout.shape[:3], 64 + 8 * extra, dtype=dout.dtype)[..., :64]
            gradients(saved, wide)
            assert len(call.ready) <= eager.LAID_OUT
    assert len(kernels) == 4  # of tensors on 16 bytes, and others


def test_captures_go_the_usual_way():
    """Which keeps what a graph replays."""
    plan = planned(weft.causal())
    *saved, dout = tensors_of(plan)
    kept = set(launch.CAPTURED)
    with pretended() as launched:
        _, gradients = recorded(plan, saved)
        gradients(saved, dout)
        assert kept == launch.CAPTURED
        count = len(launched)
    try:
        with pretended(is_capturing=lambda: True) as launched:
            gradients(saved, dout)
            assert len(launched) == 0  # those that were prepared write to the first list
        assert len(launch.CAPTURED - kept) == 2
        assert count == 2
    finally:
        launch.CAPTURED -= launch.CAPTURED - kept
