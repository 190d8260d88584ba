"""What a warm call costs the host: `weft.attention` and `torch.autograd.grad`, beside an empty function's.

    python benchmarks/host.py [--calls N] [--rounds N] [--record]

Medians of N calls, in microseconds, of causal windows over 1,024 tokens, which a GPU computes before the host has said
what comes next; there torch's own causal attention goes beside. Everything is measured in turn, in several rounds: of
these the least and the median. Cores of a virtual machine may be half as fast in one round as in another, as a loop of
nothing tells, which is timed beside: the least is of cores at their full rate, and bars are for that. They are, on a
GPU, 40 for a forward without gradients, 100 for gradients, 20 for what a step of decoding does instead of planning.

Autograd computes gradients of tensors on a GPU in a thread of its own, unless
torch.autograd.set_multithreading_enabled says otherwise: each gradient alone wakes it and waits for it, the layers of a
model do so once, as do sixteen calls of which each takes the last one's result. Waking another core is much of that: on
one core, as `taskset` would leave the process, there is none to wake.

Without a GPU launches do nothing and tensors are the CPU's: all that weft and autograd do is done, and the driver's and
the allocator's shares are left out.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from statistics import median
from unittest import mock

import torch
from torch._C._dynamo.guards import _empty_strided_cpu
from torch.nn.functional import scaled_dot_product_attention

import weft
from weft.kernels.options import Modifiers
from weft.planning.attention_plan import plan_attention
from weft.target import GPU
from weft.torch import bind, decode, eager, gpu
from weft.torch.inputs import problem_of
from weft.torch.launcher import Direct
from weft.torch.masks import pattern_of

SHAPE, MASK = (1, 4, 1024, 64), weft.causal() & weft.window(left=100)
CALLS, WARM, ROUNDS = 1000, 100, 9
LAYERS, TURNS = 16, 20_000
IN_LAYERS, ON_ONE_CORE = f"gradients, of {LAYERS} layers each", "gradients, on one core"
LOOP, DECODING = f"a loop of {TURNS:,} turns", "decode step, its planning"
BARS = {"forward": 40.0, "gradients": 100.0, IN_LAYERS: 100.0, ON_ONE_CORE: 100.0, DECODING: 20.0}
PLAIN = (None, None, 0, "auto", None)  # options of a call that names none
REACH = 100
# What MASK is recognised from.
GIVEN = {
    "a tensor": torch.from_numpy(MASK.to_dense(SHAPE[2])),
    "a function": lambda b, h, q, k: (q >= k) & (q - k <= REACH),
}
COLUMNS = ("date", "machine", "python", "torch", "commit", "device", "what", "us", "us_median", "rounds")
Attend = Callable[..., torch.Tensor]
Case = Callable[[], float]


class Nothing:
    """A kernel that is launched and does nothing."""

    function, packed_metadata = 0, ()

    def __init__(self, source: object, device: object) -> None:
        self.run = lambda *values: None


class Nowhere:
    """A descriptor of nothing."""

    at = staticmethod(lambda address: ())


class Empty(torch.autograd.Function):
    """Three tensors, three gradients, and no work."""

    @staticmethod
    def forward(ctx, q, k, v):
        ctx.save_for_backward(q, k, v)
        return q.detach()

    @staticmethod
    def backward(ctx, dout):
        return (*ctx.saved_tensors,)


def without_a_gpu(stack: ExitStack, tensors: list[torch.Tensor]) -> None:
    """Calls with these tensors are planned for a GPU, and launch nothing."""
    for name, value in (
        ("kernel_of", Nothing), ("gpu_of", lambda device: 0), ("on", lambda gpu: nullcontext()),
        ("is_capturing", lambda: False), ("_stream_of", lambda: lambda gpu: 0), ("current_gpu", lambda: 0),
        ("EMPTY", _empty_strided_cpu), ("begin_loading", lambda sources, gpu: []),
        ("direct", lambda kernel, boxes: Direct(kernel.run, (), tuple(Nowhere() for _ in boxes) or None)),
    ):  # fmt: skip
        stack.enter_context(mock.patch.object(bind, name, value))
    stack.enter_context(mock.patch.object(gpu, "begin_loading", bind.begin_loading))
    plan = plan_attention(MASK, problem_of(*tensors), GPU)
    for pattern in (MASK, *(pattern_of(given, (*SHAPE[:3], SHAPE[2])) for given in GIVEN.values())):
        call = eager.Call(pattern, "auto", plan, gpu, Modifiers(SHAPE[3] ** -0.5))
        key = eager.key_of(*tensors, pattern, (None, None), PLAIN)
        stack.enter_context(mock.patch.dict(eager._calls, {key: call}))


@contextmanager
def one_core() -> Iterator[None]:
    """All threads of this process on one core (Linux)."""
    tasks = [int(task.name) for task in Path("/proc/self/task").iterdir()]
    before = {task: os.sched_getaffinity(task) for task in tasks}
    core = {max(before[threading.get_native_id()])}
    for task in tasks:
        os.sched_setaffinity(task, core)
    try:
        yield
    finally:
        for task, cores in before.items():
            os.sched_setaffinity(task, cores)


def microseconds(call: Callable[[], object], calls: int) -> float:
    """Of one call, the median."""
    times = []
    for _ in range(WARM + calls):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return 1e6 * median(times[WARM:])


def within(context: Callable[[], AbstractContextManager[object]], case: Case) -> Case:
    """The case inside a context, which is entered anew each time."""

    def measured() -> float:
        with context():
            return case()

    return measured


def gradients(call: Attend, leaves: list[torch.Tensor], seed: torch.Tensor, calls: int) -> Case:
    """Of one call's result, alone."""
    out = call(*leaves)
    return lambda: microseconds(lambda: torch.autograd.grad(out, leaves, seed, retain_graph=True), calls)


def in_layers(call: Attend, leaves: list[torch.Tensor], seed: torch.Tensor, calls: int) -> Case:
    """Of each of `LAYERS` calls, whose queries are the result of the one before."""
    out, each = leaves[0], [leaves[0]]
    for _ in range(LAYERS):
        more = [x.detach().requires_grad_() for x in leaves[1:]]
        out, each = call(out, *more), [*each, *more]
    grad = partial(torch.autograd.grad, out, each, seed, retain_graph=True)
    return lambda: microseconds(grad, max(1, calls // LAYERS)) / LAYERS


def own(*tensors: torch.Tensor) -> torch.Tensor:
    return weft.attention(*tensors, MASK)


def torch_own(*tensors: torch.Tensor) -> torch.Tensor:
    return scaled_dot_product_attention(*tensors, is_causal=True)


def loop() -> None:
    """Nothing, `TURNS` times: how fast the core is at present."""
    for _ in range(TURNS):
        pass


def cases(leaves: list[torch.Tensor], seed: torch.Tensor, calls: int) -> dict[str, Case]:
    """{what: its microseconds, measured when called}"""
    rest = leaves, seed, calls
    found: dict[str, Case] = {
        "forward": within(torch.no_grad, lambda: microseconds(lambda: own(*leaves), calls)),
        "forward, recorded": lambda: microseconds(lambda: own(*leaves), calls),
        "gradients": gradients(own, *rest),
        "gradients of an empty function": gradients(Empty.apply, *rest),
        IN_LAYERS: in_layers(own, *rest),
        f"{IN_LAYERS}, an empty function": in_layers(Empty.apply, *rest),
        LOOP: lambda: microseconds(loop, 10),
    }
    for name, given in GIVEN.items():
        call = partial(weft.attention, *leaves, given)
        found[f"forward, the mask {name}"] = within(torch.no_grad, lambda call=call: microseconds(call, calls))
    if leaves[0].is_cuda:
        here = partial(torch.autograd.set_multithreading_enabled, False)
        found |= {
            "gradients in the thread that asks": within(here, gradients(own, *rest)),
            "gradients of torch's own": gradients(torch_own, *rest),
            f"{IN_LAYERS}, torch's own": in_layers(torch_own, *rest),
            ON_ONE_CORE: within(one_core, gradients(own, *rest)),
            f"{ON_ONE_CORE}, of an empty function": within(one_core, gradients(Empty.apply, *rest)),
            f"{ON_ONE_CORE}, of torch's own": within(one_core, gradients(torch_own, *rest)),
            **decoding(calls),
        }
    return found


def decoding(calls: int) -> dict[str, Case]:
    """A query against keys that grow by one each step: a step, and what it does instead of planning."""
    batch, heads, _, dim = SHAPE
    q = torch.randn(batch, heads, 1, dim, device="cuda", dtype=torch.bfloat16)
    keys = torch.randn(batch, heads, 2 * (WARM + calls), dim, device="cuda", dtype=torch.bfloat16)
    mask = weft.causal(align="bottom-right")

    def step(seen: torch.Tensor) -> object:
        return weft.attention(q, seen, seen, mask)

    def found() -> object:
        return decode.find(decode.key_of((q, keys, keys), mask, (None, None), PLAIN), keys.shape[2])

    def steps() -> float:
        lengths = iter(range(WARM + calls, 2 * (WARM + calls)))
        return microseconds(lambda: step(keys[:, :, : next(lengths)]), calls)

    def planning() -> float:
        step(keys)
        assert found() is not None, "this is not how a step is found"
        return microseconds(found, calls)

    return {"decode step": within(torch.no_grad, steps), DECODING: within(torch.no_grad, planning)}


def measure(calls: int, rounds: int) -> dict[str, list[float]]:
    """{what: microseconds, of each round}"""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    leaves = [torch.randn(SHAPE, device=device, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    seed = torch.randn(SHAPE, device=device, dtype=torch.bfloat16)
    with ExitStack() as stack:
        if device == "cpu":
            without_a_gpu(stack, leaves)
        each = cases(leaves, seed, calls)
        turns = [{what: case() for what, case in each.items()} for _ in range(rounds)]
    return {what: [turn[what] for turn in turns] for what in each}


def main() -> int:
    from planning import RESULTS, append, machine, provenance  # here, since tests have a package of that name

    parser = argparse.ArgumentParser(description="The host's time of a warm call")
    parser.add_argument("--calls", type=int, default=CALLS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--record", action="store_true", help="append to results/host.csv")
    asked = parser.parse_args()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "none: launches do nothing"
    print(f"{machine()}; GPU {device}; us, least and median of {asked.rounds} rounds")
    found = measure(asked.calls, asked.rounds)
    rows = []
    for what, us in found.items():
        least, middle = round(min(us), 1), round(median(us), 1)
        bar = BARS.get(what) if torch.cuda.is_available() else None
        print(
            f"{what:48s}{least:8.1f}{middle:8.1f}" + (f"  {'PASS' if least < bar else 'MISS'} ({bar:g})" if bar else "")
        )
        rows.append({"device": device, "what": what, "us": least, "us_median": middle, "rounds": asked.rounds})
    if asked.record:
        append(RESULTS / "host.csv", COLUMNS, [provenance("torch") | row for row in rows])
    return 0


if __name__ == "__main__":
    sys.exit(main())
