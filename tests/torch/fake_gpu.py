"""A GPU that is not there: what bound programs launch on it, and what these launches are told."""

from contextlib import ExitStack, contextmanager
from unittest import mock

import torch

from weft.planning.attention_plan import plan_attention
from weft.planning.problem import Problem
from weft.target import GPU
from weft.torch import bind, gpu
from weft.torch.launcher import Direct

STREAM = 7
CPU = torch.device("cpu")


class Kernel:
    """Stands in for Triton's CompiledKernel."""

    def __init__(self, source):
        self.source = source

    def __getitem__(self, grid):
        return lambda *values, stream: self.started(*grid, stream, "by Triton", *values)


class Encoder:
    """Of a descriptor: the address of what it is of."""

    def at(self, address):
        return (address,)


def encoders(boxes):
    """One for each descriptor of a launch; None where there are none."""
    return tuple(Encoder() for _ in boxes) or None


class Launched(list):
    """(kernel's name, {argument: value}, stream, grid) of each launch. made: tensors that programs made, kept alive."""

    def __init__(self):
        super().__init__()
        self.made = []

    def empty(self, size, stride, dtype):
        """What programs write, and their workspaces."""
        self.made.append(torch.empty_strided(size, stride, dtype=dtype))
        return self.made[-1]

    def direct(self, kernel, boxes):
        """Launches go past kernel[grid]."""

        def start(x, y, z, stream, _, *values):
            values = [getattr(value, "address", value) for value in values]
            names = [name for name, _ in kernel.source.types]
            self.append((kernel.source.name, dict(zip(names, values, strict=True)), stream, (x, y, z)))

        kernel.started = start
        return Direct(start, ("handle",), boxes, encoders(boxes.values()))

    def named(self, **tensors):
        """Launches, with the names of tensors where they are told addresses; what programs made is "made"."""
        where = {x.data_ptr(): "made" for x in self.made} | {x.data_ptr(): name for name, x in tensors.items()}
        return [(name, {key: where.get(x, x) for key, x in told.items()}) for name, told, *_ in self]


@contextmanager
def pretended(**state):
    """What is launched meanwhile on a GPU that is not there. state: what `weft.torch.bind` answers instead."""
    found = Launched()
    patched = {
        "current_gpu": lambda: 0, "gpu_of": lambda device: 0, "is_capturing": lambda: False, "watched": lambda: False,
        "EMPTY": found.empty, "_stream_of": lambda: lambda gpu: STREAM, "direct": found.direct,
        "way_of": lambda kernel, source, boxes, gpu: bind.direct(kernel, boxes),
        "kernel_of": lambda source, device: Kernel(source), "begin_loading": lambda sources, gpu: [],
    }  # fmt: skip
    with ExitStack() as stack:
        for name, value in (patched | state).items():
            stack.enter_context(mock.patch.object(bind, name, value))
        stack.enter_context(mock.patch.object(gpu, "begin_loading", lambda sources, gpu: []))
        stack.enter_context(mock.patch.object(torch.cuda, "device", lambda gpu: mock.MagicMock()))
        forget()
        try:
            yield found
        finally:
            forget()


def forget():
    """Bound programs are kept by plan and layout, and would be found again."""
    for kept in (gpu.bound_forward, gpu.bound_backward, gpu.bound_sinks, gpu._rows_of):
        kept.cache_clear()


def planned(pattern, heads=(2, 2), m=200, dim=64, dtype="bfloat16"):
    """As a call on a GPU is planned."""
    return plan_attention(pattern, Problem(1, *heads, m, m, dim, dim, dtype, "cuda"), GPU)


def tensors_of(plan):
    """q, k, v, out, dout, lse, all contiguous."""
    p = plan.problem

    def rows(heads):
        return torch.zeros(p.batch, heads, p.m, p.d, dtype=getattr(torch, p.dtype))

    q, k, v, out, dout = map(rows, (p.q_heads, p.kv_heads, p.kv_heads, p.q_heads, p.q_heads))
    return [q, k, v, out, dout, torch.zeros(p.batch, p.q_heads, p.m)]
