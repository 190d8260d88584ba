"""The launches of a fused backward: see `weft.planning.families.fused_backward`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from weft.kernels.gpu.configure import fused_spec, sparse_specs
from weft.kernels.gpu.descriptors import OF_SPARSE, READ, WRITTEN, Which
from weft.kernels.gpu.spec import KernelSpec
from weft.planning.families.fused_backward import FusedBackward, cut
from weft.planning.families.sparse_keys import GROUPS, REDUCED, TILE, TILES, SparseKeys, parts_of
from weft.planning.problem import Problem
from weft.planning.tma import TmaExtent
from weft.target import Gpu


class Asked(NamedTuple):
    """A launch. values: its integers. boxes: its descriptors. reach: of queries and of keys. table: the number of the
    table of sparse keys that it reads.
    """

    spec: KernelSpec
    grid: tuple[int, int, int]
    values: Mapping[str, int]
    boxes: Which = ()
    reach: tuple[TmaExtent, ...] = ()
    table: int | None = None


@dataclass(frozen=True)
class FusedLaunches:
    """The launches of a fused backward, one after the other."""

    walk: FusedBackward
    problem: Problem
    gpu: Gpu

    @cached_property
    def beside(self) -> list[tuple[SparseKeys, int]]:
        """Sparse keys of a launch, and the programs that share the queries of a head of keys."""
        return [(sparse, parts_of(sparse, self.problem, self.gpu).parts) for sparse in self.walk.launches]

    @property
    def heads(self) -> int:
        """Of keys, of all batch rows."""
        return self.problem.batch * self.problem.kv_heads

    @property
    def partial(self) -> tuple[int]:
        """How many numbers programs leave of dK and dV, at most."""
        return (max(self.heads * parts * GROUPS * TILES * 2 * TILE * TILE for _, parts in self.beside),)

    def kernels(self, lse_gradient: bool, with_delta: bool) -> Iterator[Asked]:
        """lse_gradient: there is one; with_delta: what scores subtract is left, as it is for sparse keys."""
        yield self._window(lse_gradient, with_delta)
        for number in range(len(self.beside)):
            yield from self._sparse(number)

    def _window(self, lse_gradient: bool, with_delta: bool) -> Asked:
        window, problem = self.walk.window, self.problem
        runs = cut(window, problem, self.gpu)
        items = self.heads * runs.runs
        values = {
            "items": items, "runs": runs.runs, "per": runs.per, "tiles": window.tiles, "shift": window.shift,
            "tokens": window.length, "kv_heads": problem.kv_heads, "share": problem.group, "left": window.left,
            "right": window.right,
        }  # fmt: skip
        every = TmaExtent(0, 1, 1, window.length)
        spec = fused_spec(problem, lse_gradient, with_delta)
        return Asked(spec, (min(self.gpu.processors, items), 1, 1), values, (*READ, *WRITTEN), (every, every))

    def _sparse(self, number: int) -> Iterator[Asked]:
        (sparse, parts), problem = self.beside[number], self.problem
        add, reduce = sparse_specs(problem)
        items = self.heads * parts
        place, lane = sparse.extent.first
        values = {
            "items": items, "parts": parts, "tokens": problem.m, "kv_heads": problem.kv_heads, "share": problem.group,
            "place": place, "lane": lane,
        }  # fmt: skip
        reach = TmaExtent(0, 1, 1, problem.m), sparse.extent
        yield Asked(add, (min(self.gpu.processors, items), 1, 1), values, OF_SPARSE, reach, number)
        values = {
            "parts": GROUPS * parts, "first": sparse.base, "step": sparse.step, "keys": sparse.count,
            "kv_heads": problem.kv_heads,
        }  # fmt: skip
        yield Asked(reduce, (self.heads * -(-sparse.count // REDUCED), 1, 1), values)
