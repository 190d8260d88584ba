"""Gradients that take launches and nothing else, made by one function that has nothing left to find out.

Autograd calls a backward in a thread of its own, where caches are cold: each function entered there costs the host a
microsecond or two, and `run.backward` enters a dozen. benchmarks/notes/triton.md has the times.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import torch

from weft.kernels.triton import launch
from weft.kernels.triton.launch import ADDRESS, Prepared, gradient_calls
from weft.planning.problem import Problem

KEPT = 256  # streams and addresses that a backward was called with
Places = tuple[int, ...]  # of tensors among those that are given, and then those that are made


class Ready:
    """The launches of a backward, for tensors that lie in one way on one GPU.

    calls: what `run` launches, with places instead of tensors. found: places of dq, dk and dv among what is made. kept:
    the calls' own, whose tables stay where launches expect them.
    """

    __slots__ = ("found", "gpu", "kept", "known", "made", "steps", "stream")

    def __init__(self, calls: Sequence[tuple[Prepared, Places]], found: Places) -> None:
        self.kept = [one for one, _ in calls]
        self.gpu = self.kept[0].gpu
        self.stream = launch._stream_of()
        self.made = [made for one in self.kept for made in one.made]
        self.steps = [
            (way.start, one.grid, way.handles, itemgetter(*places), one.rest, way.maps)
            for call, places in calls for one in call.launches if (way := one.way) is not None
        ]  # fmt: skip
        self.found = itemgetter(*found)
        self.known: dict[tuple[int, ...], list[tuple[Any, tuple[Any, ...]]]] = {}

    def __call__(self, given: list[int]) -> tuple[torch.Tensor, ...] | None:
        """(dq, dk, dv) on the current stream. given: addresses of q, k, v, out, lse and dout, which lie in that way.

        None where there is more to do: on another GPU than the current one, under a profiler's hooks, lse off 16 bytes.
        """
        gpu = self.gpu
        if gpu != launch.current_gpu() or launch._hooked() or given[4] & 15:
            return None
        if launch.is_capturing():
            launch.CAPTURED.update(self.kept)
        made = [launch.EMPTY(*one) for one in self.made]
        at = (self.stream(gpu), *given, *map(ADDRESS, made))
        for start, values in self.known.get(at) or self._kept(at):
            start(*values)
        return self.found(made)

    def _kept(self, at: tuple[int, ...]) -> list[tuple[Any, tuple[Any, ...]]]:
        """What starts each launch, and all that it is told; found by these addresses from now on."""
        stream, *addresses = at
        found = []
        for start, grid, handles, places, rest, maps in self.steps:
            values = places(addresses)
            more = maps.of(values) if maps else ()
            found.append((start, (*grid, stream, *handles, *values, *rest, *more)))
        if len(self.known) >= KEPT:
            self.known.clear()
        self.known[at] = found
        return found


def of_walk(given: tuple[Any, ...], made: tuple[Any, ...]) -> tuple[Any, ...]:
    """What one walk is told. given: q, k, v, out, dout, lse, its gradient; made: dq, dk, dv, delta, partial sums, of
    which the last two may not be made; then nobody looks at what stands for them.
    """
    lse = given[5]
    return *given, *(*made, lse, lse)[:5]


def dense_strides(problem: Problem) -> tuple[tuple[int, ...], ...]:
    """Of q, k, v, out, lse and dout where all are contiguous."""
    of_queries, of_keys = (problem.batch, problem.q_heads, problem.m), (problem.batch, problem.kv_heads, problem.n)
    d, dv = problem.d, problem.dv
    sizes = (*of_queries, d), (*of_keys, d), (*of_keys, dv), (*of_queries, dv), of_queries, (*of_queries, dv)
    return tuple(torch.empty(size, device="meta").stride() for size in sizes)


def ready_of(queries: Prepared, keys: Prepared | None) -> Ready | None:
    """Of what `run.prepared_gradients` found, without sinks, slopes and a gradient of lse; None where something goes
    before or after launches, or only kernel[grid] is known to launch them.
    """
    parts = (queries,) if keys is None else (queries, keys)
    alone = all(one.complete and one.before is None for one in parts)
    if not alone or queries.gpu is None or launch.EMPTY is None or not all(map(_short, parts)):
        return None
    q, k, v, out, lse, dout, *made = range(6 + sum(len(one.made) for one in parts))
    given = q, k, v, out, dout, lse, lse
    if keys is None:
        return Ready([(queries, of_walk(given, tuple(made)))], (0, 1, 2))
    dq, *more, dk, dv = made
    delta, stats = more[0], more[-1]  # as in `run.backward`
    of_keys = gradient_calls(keys, (q, k, v, dout, lse, delta, stats), (dk, dv), (delta,))
    return Ready([(queries, (*given, dq, delta, stats, delta)), *of_keys], (0, -2, -1))


def _short(call: Prepared) -> bool:
    """Whether all launches go past kernel[grid], with descriptors that are found by addresses."""
    return all(one.way is not None and bool(one.way.maps) == bool(one.boxes) for one in call.launches)
