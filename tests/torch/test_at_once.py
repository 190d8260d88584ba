"""Gradients that take nothing but launches: told what `run.backward` tells them, and left to it where there is more."""

import gc
import weakref
from contextlib import ExitStack, contextmanager, nullcontext
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from weft.kernels.triton.launcher import Direct

import weft
from weft.kernels.options import Modifiers
from weft.kernels.triton import launch, loaded, ready, run
from weft.planning.attention_plan import plan_attention
from weft.planning.problem import Problem
from weft.settings import interpreted
from weft.target import GPU
from weft.torch import eager

pytestmark = pytest.mark.skipif(interpreted(), reason="kernels are told tensors, not addresses")

HOW, STREAM = Modifiers(0.1), 7
CPU = torch.device("cpu")
STRIDED = weft.causal() & (weft.window(left=127) | weft.periodic_keys(128))


class Descriptors:
    """Of a launch: which tensors they are of, and where these are."""

    def __init__(self, boxes):
        self.boxes = boxes

    def of(self, addresses):
        return tuple(addresses[box.tensor] for box in self.boxes)


class Launched(list):
    """(kernel, arguments) of launches; made: tensors that calls made for them."""

    def __init__(self):
        super().__init__()
        self.made = []

    def keeping(self, make):
        """What makes a tensor or several, which stay."""

        def kept(*given):
            made = make(*given)
            self.made += made if isinstance(made, list) else [made]
            return made

        return kept


@contextmanager
def pretended(**state):
    """What is launched meanwhile on a GPU that is not there; state: what `launch` answers."""
    found = Launched()

    class Kernel:
        def __init__(self, spec, device):
            self.spec = spec

    def direct(kernel, boxes):
        start = lambda *values: found.append((kernel.spec.name, values))  # noqa: E731
        return Direct(start, ("handles",), Descriptors(boxes) if boxes else None)

    empty = found.keeping(lambda size, stride, dtype: torch.empty_strided(size, stride, dtype=dtype))
    patched = {
        "current_gpu": lambda: 0, "is_capturing": lambda: False, "_hooked": lambda: False, "EMPTY": empty,
        "_stream_of": lambda: lambda gpu: STREAM, "direct": direct,
    }  # fmt: skip
    with ExitStack() as stack:
        for name, value in (patched | state).items():
            stack.enter_context(mock.patch.object(launch, name, value))
        stack.enter_context(mock.patch.object(launch.Prepared, "empty", found.keeping(launch.Prepared.empty)))
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


def ready_for(plan, given, deterministic=True):
    """`run.ready` of tensors that lie like these."""
    *qkvo, _, dout = given
    aligned = not any(x.data_ptr() & 15 for x in (*qkvo, dout))
    return run.ready(plan, HOW, tuple(x.stride() for x in given), aligned, deterministic, CPU)


def by_name(launched, given, gradients):
    """Launches with the names of tensors where they are told addresses; what lies elsewhere is made on the way."""
    named = dict(zip(("q", "k", "v", "out", "lse", "dout"), given, strict=True))
    named |= dict(zip(("dq", "dk", "dv"), gradients, strict=True))
    where = {x.data_ptr(): "made" for x in launched.made} | {x.data_ptr(): name for name, x in named.items()}
    return [(kernel, [where.get(x, x) if isinstance(x, int) else x for x in values]) for kernel, values in launched]


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
        found = ready_for(plan, given)
        assert found is not None
        again = found([x.data_ptr() for x in given])
        assert by_name(launched, given, again) == usual
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
    plan = planned(weft.causal(), heads=(1, 1), m=4096)
    with pretended():
        assert ready_for(plan, tensors_of(plan), deterministic=True) is not None
        assert ready_for(plan, tensors_of(plan), deterministic=False) is None


def test_rows_of_lse_apart():
    plan = planned(weft.causal())
    *saved, lse, dout = tensors_of(plan)
    with pretended():
        assert ready_for(plan, [*saved, lse.mT.contiguous().mT, dout]) is None
        assert ready_for(plan, [*saved, lse, dout]) is not None


@pytest.mark.parametrize("state", [{"current_gpu": lambda: 1}, {"_hooked": lambda: True}])
def test_moments_that_are_not_for_it(state):
    plan = planned(weft.causal())
    given = tensors_of(plan)
    with pretended():
        found = ready_for(plan, given)
    with pretended(**state):
        assert found([x.data_ptr() for x in given]) is None


def test_lse_off_16_bytes_is_copied():
    """Kernels are told that it is not: a hook of saved tensors may leave it anywhere."""
    plan = planned(weft.causal())
    q, k, v, out, lse, dout = tensors_of(plan)
    odd = torch.zeros(lse.numel() + 1)[1:].view(lse.shape)
    with pretended() as launched:
        assert ready_for(plan, [q, k, v, out, odd, dout])([x.data_ptr() for x in (q, k, v, out, odd, dout)]) is None
        assert launched == []
        run.backward((q, k, v), (out, dout, odd, None), plan, HOW)
    addresses = {values[5 + at] for (_, values), at in zip(launched, (5, 4), strict=True)}
    assert odd.data_ptr() not in addresses
    assert all(address % 16 == 0 for address in addresses)


@pytest.mark.parametrize("kept", [3, 100])
def test_told_by_stream_and_addresses(kept, monkeypatch):
    """Which are kept for when they come again, not without end."""
    monkeypatch.setattr(ready, "KEPT", kept)
    plan, stream, alive = planned(weft.causal()), STREAM, []
    first, *others = (tensors_of(plan) for _ in range(6))
    with pretended(_stream_of=lambda: lambda gpu: stream) as launched:
        found = ready_for(plan, first)
        for given in (first, first, *others, first):
            for stream in (STREAM, STREAM + 1):
                launched.clear()
                alive.append(found([x.data_ptr() for x in given]))  # so none lies where another did
                (_, queries), (_, keys) = by_name(launched, given, alive[-1])
                assert queries[3] == keys[3] == stream
                assert [queries[5:11], queries[12]] == [["q", "k", "v", "out", "dout", "lse"], "dq"]
                assert [keys[5:10], keys[12:14]] == [["q", "k", "v", "dout", "lse"], ["dk", "dv"]]
                assert 0 < len(found.known) <= kept


@pytest.mark.parametrize("of_keys", [False, True])
@pytest.mark.parametrize("boxes", [False, True])
def test_kernels_that_only_triton_knows_to_launch(boxes, of_keys):
    """boxes: it is their descriptors that Triton encodes. of_keys: one of two kernels is such."""
    plan = planned(weft.causal() & weft.window(left=100), dim=64 if boxes else 128)

    def direct(kernel, found):
        known = kernel.spec.direction != ("dkdv" if of_keys else kernel.spec.direction)
        return Direct(print, (), Descriptors(found) if found and known else None) if known or found else None

    run.prepared_gradients.cache_clear(), run.prepared.cache_clear()
    with pretended(direct=direct):
        assert (ready_for(plan, tensors_of(plan)) is None) == (not boxes or not of_keys)
    run.prepared_gradients.cache_clear(), run.prepared.cache_clear()


@pytest.mark.parametrize("name", ["one walk", "two kernels"])
def test_tables_live_as_long(name):
    """Launches know their addresses."""
    plan = PLANS[name]()
    with pretended():
        found = ready_for(plan, tensors_of(plan))
        tables = [weakref.ref(x) for call in found.kept for x in _words(call.tables)]
        plan = None
        run.prepared_gradients.cache_clear(), run.prepared.cache_clear(), loaded.loaded.cache_clear()
        gc.collect()
        assert all(table() is not None for table in tables)
        assert tables or name == "one walk"
        del found
        gc.collect()
        assert all(table() is None for table in tables)


def _words(tables):
    return [words for _, words in tables.waves] if hasattr(tables, "waves") else tables


# ---- through autograd ------------------------------------------------------------------------------------------------
CALLED = weft.causal()


def gradients(call, given, deterministic=True, **more):
    """What autograd is given of a call after its forward. more: dlse, sinks, slopes."""
    *saved, dout = given
    kept = *saved, more.get("sinks"), more.get("slopes")
    ctx = SimpleNamespace(saved_tensors=kept, call=call, deterministic=deterministic)
    with torch.no_grad():
        return eager.Recorded.backward(ctx, dout, more.get("dlse"))


def call_of(plan):
    return eager.Call(CALLED, "auto", plan, run, HOW)


def turned(x):
    """Its tokens before its heads."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def moved(x):
    """Off 16 bytes."""
    return torch.zeros(x.numel() + 1, dtype=x.dtype)[1:].view(x.shape)


def test_found_again_by_how_tensors_lie(monkeypatch):
    """Whichever tensor is laid out otherwise; off 16 bytes is off, whichever is."""
    monkeypatch.setattr(eager, "LAID_OUT", 100)
    usual, seen = ready.Ready.__call__, []
    monkeypatch.setattr(ready.Ready, "__call__", lambda self, at: seen.append(self) or usual(self, at))
    plan = planned(CALLED)
    given, call = tensors_of(plan), call_of(plan)
    each = (0, 1, 2, 3, 5)
    layouts = [given, *([*given[:i], turned(given[i]), *given[i + 1 :]] for i in each)]
    layouts += [[*map(turned, given[:4]), *given[4:]], [*map(turned, given[:4]), given[4], turned(given[5])]]
    off = [[*given[:i], moved(given[i]), *given[i + 1 :]] for i in each]
    with pretended():
        for tensors in 2 * [*layouts, *off]:
            assert gradients(call, tensors)[3:] == (None,) * 4
    count = len(layouts) + len(off)
    assert seen[:count] == seen[count:]
    assert len(set(seen[: len(layouts)])) == len(layouts)
    assert len(set(seen[len(layouts) : count])) == 1
    assert seen[count - 1] not in seen[: len(layouts)]


def test_order_of_sums_is_asked_for_each_time():
    plan = planned(CALLED, heads=(1, 1), m=4096)
    given, call = tensors_of(plan), call_of(plan)
    with pretended():
        gradients(call, given, deterministic=True)
        gradients(call, given, deterministic=False)
    assert [ready is None for ready in call.ready.values()] == [False, True]


def test_no_end_of_layouts():
    plan = planned(CALLED)
    *saved, dout = tensors_of(plan)
    call = call_of(plan)
    with pretended():
        for extra in range(eager.LAID_OUT + 2):
            wide = torch.zeros(*dout.shape[:3], 64 + 8 * extra, dtype=dout.dtype)[..., :64]
            gradients(call, [*saved, wide])
            assert len(call.ready) == 1 + extra % eager.LAID_OUT


@pytest.mark.parametrize("more", ["dlse", "sinks", "slopes"])
def test_calls_with_more_to_do(more):
    plan = planned(CALLED)
    given = tensors_of(plan)
    value = torch.zeros_like(given[4]) if more == "dlse" else torch.ones(plan.problem.q_heads)
    with pretended(), mock.patch.object(eager, "gradients", return_value=("dq", "dk", "dv", "dsinks")) as usual:
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
    kept = set(launch.CAPTURED)
    with pretended() as launched:
        gradients(call, given)
        gradients(call, other)
        run.prepared_gradients.cache_clear()
        assert kept == launch.CAPTURED
        launched.clear()
        with mock.patch.object(launch, "is_capturing", lambda: True):
            gradients(call, other)
    held = launch.CAPTURED - kept
    launch.CAPTURED -= held
    assert len(launched) == len(held) == 2
