"""Which heads share a plan: batch rows and query heads under the same pattern are planned once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product as cartesian

from weft.acsr.format import Acsr
from weft.errors import InputError
from weft.pattern.algebra import Pattern
from weft.planning.problem import Problem
from weft.planning.tiles import TilePlan


@dataclass(frozen=True)
class Heads:
    """Batch rows [batch[0], batch[1]), key/value heads [kv[0], kv[1]), and query heads [group[0], group[1]) of each."""

    batch: tuple[int, int]
    kv: tuple[int, int]
    group: tuple[int, int]


@dataclass(frozen=True, eq=False)
class Share:
    """A TilePlan and the heads that it serves; `batch` and `head` are one of them. pack: shares of one run side by side
    on a GPU where they can; packs follow each other.
    """

    plan: TilePlan
    heads: tuple[Heads, ...]
    batch: int
    head: int
    pack: int = 0


def check_extent(pattern: Pattern, problem: Problem) -> None:
    """Raise InputError if the pattern tells another number of heads or batch rows apart than there are."""
    for told, have, name in zip(
        pattern.extent(), (problem.batch, problem.q_heads), ("batch rows", "heads"), strict=True
    ):
        if told is not None and told != have:
            raise InputError(
                f"attention under {pattern}", f"the pattern is for {told} {name}, q has {have}",
                f"give one pattern for each of the {have} {name}",
            )  # fmt: skip


def distinct_heads(pattern: Pattern, problem: Problem) -> dict[tuple[int, int], list[Heads]]:
    """For each distinct pattern its first (batch row, head), and all that share it."""
    batches, heads = pattern.extent()
    everyone = Heads((0, problem.batch), (0, problem.kv_heads), (0, problem.group))
    if batches is None and heads is None:
        return {(0, 0): [everyone]}
    owner: dict[Pattern, tuple[int, int]] = {}
    found: dict[tuple[int, int], list[Heads]] = {}
    for b in range(problem.batch if batches is not None else 1):
        rows = (b, b + 1) if batches is not None else (0, problem.batch)
        if heads is None:
            first = owner.setdefault(pattern.at(b, 0), (b, 0))
            found.setdefault(first, []).append(Heads(rows, everyone.kv, everyone.group))
            continue
        owners = [owner.setdefault(pattern.at(b, h), (b, h)) for h in range(problem.q_heads)]
        for first, kv, group in _runs(owners, problem.group):
            found.setdefault(first, []).append(Heads(rows, kv, group))
    return found


def _runs(
    owners: list[tuple[int, int]], group: int
) -> Iterator[tuple[tuple[int, int], tuple[int, int], tuple[int, int]]]:
    """(owner, key/value heads, heads of a group): neighbouring whole groups of one owner together, the rest singly."""
    kv_heads, at = len(owners) // group, 0
    while at < kv_heads:
        mine = owners[at * group : (at + 1) * group]
        if len(set(mine)) == 1:
            stop = at + 1
            while stop < kv_heads and set(owners[stop * group : (stop + 1) * group]) == set(mine):
                stop += 1
            yield mine[0], (at, stop), (0, group)
            at = stop
            continue
        first = 0
        for g in range(1, group + 1):
            if g == group or mine[g] != mine[first]:
                yield mine[first], (at, at + 1), (first, g)
                first = g
        at += 1


def served(heads: tuple[Heads, ...], group: int) -> Iterator[tuple[int, int]]:
    """(batch row, query head) of every head served."""
    for one in heads:
        for b, kv, g in cartesian(range(*one.batch), range(*one.kv), range(*one.group)):
            yield b, kv * group + g


def count_heads(heads: Iterable[Heads]) -> int:
    """Query heads over all batch rows."""
    return sum((h.batch[1] - h.batch[0]) * (h.kv[1] - h.kv[0]) * (h.group[1] - h.group[0]) for h in heads)


def rows_of(shares: Iterable[Share]) -> list[tuple[Acsr, int]]:
    """The rows of every share, and how many query heads have them."""
    return [(share.plan.acsr, count_heads(share.heads)) for share in shares]
