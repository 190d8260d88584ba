"""The time of calls on a GPU, as they run in a model: in CUDA graphs, and on weights that no cache holds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

GRAPH = 1e-3  # seconds of calls in one graph
ENOUGH = 0.02  # seconds of replays
FEWEST, MOST = 4, 40  # replays
LARGEST = 48  # calls in one graph
TWICE = 2.0  # of a card's cache, from which nothing is left of what was read before


def compiled_alone(module: GraphModule, tensors: list[Any]) -> Callable[..., Any]:
    """A graph, compiled by Inductor while it compiles the graph around it."""
    from torch._inductor.compile_fx import compile_fx

    with torch._guards.tracing(None):  # a graph of its own
        made: Any = compile_fx(module, tensors)
        made(*tensors)
    called: Callable[..., Any] = made
    return called


def in_turn(tensors: Sequence[Any], copied: Iterable[int] | None = None) -> list[list[Any]]:
    """The tensors, and copies of some of them, so that calls on each in turn read from memory and not from a cache.

    copied: which ones; all by default. A model reads the weights of all other layers before it reads a layer's again.
    """
    which = set(range(len(tensors)) if copied is None else copied)
    total = sum(x.nbytes for i, x in enumerate(tensors) if i in which and isinstance(x, Tensor))
    device = next(x.device for x in tensors if isinstance(x, Tensor))
    if device.type != "cuda" or not total:
        return [list(tensors)]
    cache = torch.cuda.get_device_properties(device).L2_cache_size
    count = max(1, min(LARGEST, 1 + int(TWICE * cache / total))) if total < TWICE * cache else 1
    copies = [[x.clone() if i in which and isinstance(x, Tensor) else x for i, x in enumerate(tensors)]
              for _ in range(count - 1)]  # fmt: skip
    return [list(tensors), *copies]


def parameters_of(tensors: Sequence[Any]) -> list[int]:
    """Which tensors are parameters: others, as activations and masks, are as a layer before has left them."""
    return [i for i, x in enumerate(tensors) if isinstance(x, torch.nn.Parameter)]


def seconds_of(calls: Sequence[Callable[[], Any]]) -> float:
    """Seconds of a call, in a CUDA graph of many that takes these in turn. It is the least of some replays, since
    others on the card only add.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:  # kernels of some may not be loaded yet
            call()
        stream.synchronize()
        begin = time.perf_counter()
        calls[-1]()
        stream.synchronize()
        once = max(1e-6, time.perf_counter() - begin)
    rounds = max(1, min(20, int(GRAPH / once)) // len(calls))
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(rounds):
            for call in calls:
                call()
    each = rounds * len(calls)
    found: list[float] = []
    while len(found) < FEWEST or (sum(found) * each < ENOUGH and len(found) < MOST):
        begins, ends = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begins.record()
        graph.replay()
        ends.record()
        ends.synchronize()
        found.append(begins.elapsed_time(ends) / 1e3 / each)
    return min(found)
