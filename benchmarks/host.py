"""What a warm call costs the host: `weft.attention` and `torch.autograd.grad`, beside an empty function's.

    python benchmarks/host.py [--calls N] [--record]

Medians of N calls, in microseconds, of causal windows over 1,024 tokens, which a GPU computes before the host has said
what comes next; there torch's own causal attention goes beside. Autograd computes gradients of tensors on a GPU in a
thread of its own, unless torch.autograd.set_multithreading_enabled says otherwise: each gradient alone wakes it and
waits for it, the layers of a model do so once, as do sixteen calls of which each takes the last one's result. Waking
another core is much of that: on one core, as `taskset` would leave the process, there is none to wake. Without a GPU
launches do nothing and tensors are the CPU's: all that weft and autograd do is done, and the driver's and the
allocator's shares are left out. Bars, on a GPU: 40 for a forward without gradients, 100 for gradients, 20 for what a
step of decoding does instead of planning.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from statistics import median
from unittest import mock

import torch
from torch._C._dynamo.guards import _empty_strided_cpu
from torch.nn.functional import scaled_dot_product_attention

import weft
from weft.kernels.options import Modifiers
from weft.kernels.triton import launch, run
from weft.kernels.triton.launcher import Direct
from weft.planning.attention_plan import plan_attention
from weft.target import GPU
from weft.torch import decode, eager
from weft.torch.inputs import problem_of

SHAPE, MASK = (1, 4, 1024, 64), weft.causal() & weft.window(left=100)
CALLS, WARM = 1000, 100
LAYERS = 16
IN_LAYERS, ON_ONE_CORE = f"gradients, of {LAYERS} layers each", "gradients, on one core"
BARS = {
    "forward": 40.0, "gradients": 100.0, IN_LAYERS: 100.0, ON_ONE_CORE: 100.0, "decode step, its planning": 20.0,
}  # fmt: skip
PLAIN = (None, None, 0, "auto", None)  # options of a call that names none
COLUMNS = ("date", "machine", "python", "torch", "commit", "device", "what", "us")


class Nothing:
    """A kernel that is launched and does nothing."""

    function, packed_metadata = 0, ()

    def __init__(self, spec: object, device: object) -> None:
        self.run = lambda *values: None


class Nowhere:
    """Descriptors of nothing."""

    of = staticmethod(lambda addresses: ())


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
    for place, name, value in (
        (run, "kernel_of", Nothing), (run, "gpu_of", lambda device: 0), (run, "on", lambda gpu: nullcontext()),
        (launch, "is_capturing", lambda: False), (launch, "_stream_of", lambda: lambda gpu: 0),
        (launch, "current_gpu", lambda: 0), (launch, "EMPTY", _empty_strided_cpu),
        (launch, "direct", lambda kernel, boxes: Direct(kernel.run, (), Nowhere())),
    ):  # fmt: skip
        stack.enter_context(mock.patch.object(place, name, value))
    plan = plan_attention(MASK, problem_of(*tensors), GPU)
    call = eager.Call(MASK, "auto", plan, run, Modifiers(SHAPE[3] ** -0.5))
    key = eager.key_of(*tensors, MASK, (None, None), PLAIN)
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


def measure(calls: int) -> dict[str, float]:
    """{what: microseconds}"""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    leaves = [torch.randn(SHAPE, device=device, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    seed = torch.randn(SHAPE, device=device, dtype=torch.bfloat16)

    def gradients(out: torch.Tensor) -> float:
        return microseconds(lambda: torch.autograd.grad(out, leaves, seed, retain_graph=True), calls)

    def in_layers(call: Callable[..., torch.Tensor]) -> float:
        out, each = leaves[0], [leaves[0]]
        for _ in range(LAYERS):
            more = [x.detach().requires_grad_() for x in leaves[1:]]
            out, each = call(out, *more), [*each, *more]
        grad = partial(torch.autograd.grad, out, each, seed, retain_graph=True)
        return microseconds(grad, max(1, calls // LAYERS)) / LAYERS

    def own(*tensors: torch.Tensor) -> torch.Tensor:
        return weft.attention(*tensors, MASK)

    def torch_own(*tensors: torch.Tensor) -> torch.Tensor:
        return scaled_dot_product_attention(*tensors, is_causal=True)

    found = {}
    with ExitStack() as stack:
        if device == "cpu":
            without_a_gpu(stack, leaves)
        with torch.no_grad():
            found["forward"] = microseconds(lambda: own(*leaves), calls)
        found["forward, recorded"] = microseconds(lambda: own(*leaves), calls)
        found["gradients"] = gradients(own(*leaves))
        found["gradients of an empty function"] = gradients(Empty.apply(*leaves))
        found[IN_LAYERS] = in_layers(own)
        found[f"{IN_LAYERS}, an empty function"] = in_layers(Empty.apply)
        if device == "cuda":
            with torch.autograd.set_multithreading_enabled(False):
                found["gradients in the thread that asks"] = gradients(own(*leaves))
            found["gradients of torch's own"] = gradients(torch_own(*leaves))
            found[f"{IN_LAYERS}, torch's own"] = in_layers(torch_own)
            if hasattr(os, "sched_setaffinity"):
                with one_core():
                    found[ON_ONE_CORE] = gradients(own(*leaves))
                    found[f"{ON_ONE_CORE}, of an empty function"] = gradients(Empty.apply(*leaves))
                    found[f"{ON_ONE_CORE}, of torch's own"] = gradients(torch_own(*leaves))
            found |= decoding(calls)
    return found


def decoding(calls: int) -> dict[str, float]:
    """A query against keys that grow by one each step: a step, and what it does instead of planning."""
    batch, heads, _, dim = SHAPE
    q = torch.randn(batch, heads, 1, dim, device="cuda", dtype=torch.bfloat16)
    keys = torch.randn(batch, heads, 2 * (WARM + calls), dim, device="cuda", dtype=torch.bfloat16)
    mask = weft.causal(align="bottom-right")
    lengths = iter(range(WARM + calls, 3 * (WARM + calls)))

    def step() -> object:
        seen = keys[:, :, : next(lengths)]
        return weft.attention(q, seen, seen, mask)

    def found() -> object:
        return decode.find(decode.key_of((q, keys, keys), mask, (None, None), PLAIN), keys.shape[2])

    with torch.no_grad():
        times = {"decode step": microseconds(step, calls)}
        weft.attention(q, keys, keys, mask)
        assert found() is not None, "this is not how a step is found"
        return times | {"decode step, its planning": microseconds(found, calls)}


def main() -> int:
    from planning import RESULTS, append, machine, provenance  # here, since tests have a package of that name

    parser = argparse.ArgumentParser(description="The host's time of a warm call")
    parser.add_argument("--calls", type=int, default=CALLS)
    parser.add_argument("--record", action="store_true", help="append to results/host.csv")
    asked = parser.parse_args()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "none: launches do nothing"
    print(f"{machine()}; GPU {device}")
    found = measure(asked.calls)
    for what, us in found.items():
        bar = BARS.get(what) if torch.cuda.is_available() else None
        print(f"{what:48s}{us:8.1f} us" + (f"  {'PASS' if us < bar else 'MISS'} ({bar:g})" if bar else ""))
    if asked.record:
        rows = [
            provenance("torch") | {"device": device, "what": what, "us": round(us, 1)} for what, us in found.items()
        ]
        append(RESULTS / "host.csv", COLUMNS, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
