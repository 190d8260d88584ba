"""The plan of one attention call: heads and batch rows with the same pattern share a TilePlan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product as cartesian
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.acsr.format import BLOCK, Acsr
from weft.acsr.interpret import Reals, Scoring
from weft.errors import InputError, UnsupportedKernel, VerificationError
from weft.pattern.algebra import Pattern
from weft.planning import short
from weft.planning.candidates import shared_of_blocks, usual
from weft.planning.choice import Candidate, Fixed, Rows, backward_in_one, packed, plan_rows
from weft.planning.device import plan_for_device
from weft.planning.problem import DTYPES, Problem
from weft.planning.tiles import TilePlan
from weft.planning.tiling import DIRECTIONS, OF_GRADIENTS, Direction
from weft.planning.walk import Walk, walk_of
from weft.target import CPU, Gpu, Target

if TYPE_CHECKING:  # it plans rows of an AttentionPlan
    from weft.planning.row_choice import ByRows


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


@dataclass(frozen=True, eq=False)
class AttentionPlan:
    """Everything that is decided before a kernel runs. `forward` walks queries, `transposed` walks keys (for dK and
    dV); `queries` walks queries for dQ, in tiles that a GPU may choose apart. fixed: tilings that were asked for.
    """

    pattern: Pattern
    problem: Problem
    target: Target | Gpu
    forward: tuple[Share, ...]
    fixed: Fixed = ()

    @cached_property
    def queries(self) -> tuple[Share, ...]:
        """The rows of queries once more, for dQ; the forward plans themselves where nothing differs."""
        found = self._planned("dq", [share.plan.acsr for share in self.forward])
        both = zip(found, self.forward, strict=True)
        same = all(
            (a.plan.tiling, a.plan.of_blocks, a.pack) == (b.plan.tiling, b.plan.of_blocks, b.pack) for a, b in both
        )
        return self.forward if same else found

    @cached_property
    def transposed(self) -> tuple[Share, ...]:
        """The same pairs by tiles of keys. On a CPU a plan may be its own transpose: both sides are planned alike."""
        return self._planned("dkdv", [share.plan.acsr.transpose() for share in self.forward])

    @cached_property
    def forward_in_step(self) -> tuple[Share, ...]:
        """Tiles of queries where all warps do the same, for calls that have no kernel whose groups specialise."""
        return self._in_step("forward")

    @cached_property
    def keys_in_step(self) -> tuple[Share, ...]:
        """The same of keys."""
        return self._in_step("dkdv")

    def _in_step(self, direction: Direction) -> tuple[Share, ...]:
        shares = self.towards(direction)
        if not isinstance(self.target, Gpu) or not any(s.plan.tiling and s.plan.tiling.groups for s in shares):
            return shares
        tiling = usual(direction, self.problem, 1, self.target)
        plans = [plan_for_device(s.plan.acsr, self.problem, self.target, tiling) for s in shares]
        return tuple(replace(share, plan=plan) for share, plan in zip(shares, plans, strict=True))

    @cached_property
    def in_one(self) -> tuple[Share, ...] | None:
        """Tiles of keys for a backward in one kernel, which is not deterministic; None unless one is predicted to be
        clearly faster than two, and fits.
        """
        if not isinstance(self.target, Gpu) or self._two_asked:
            return None
        two, every = (self.candidate("dq"), self.candidate("dkdv")), [share.plan.acsr for share in self.transposed]
        plans = backward_in_one(self._rows(every), self.problem, self.target, two)
        # only then, since all rows of a long sequence are looked at
        if plans is not None and (seeing := self._keys_that_see) != every:
            plans = backward_in_one(self._rows(seeing), self.problem, self.target, two)
        if plans is None:
            return None
        return tuple(replace(share, plan=plan, pack=0) for share, plan in zip(self.forward, plans, strict=True))

    @cached_property
    def summing(self) -> tuple[Share, ...]:
        """Tiles of keys for a backward in one kernel, be it chosen or asked for in spite of what is predicted."""
        return self.in_one or self._planned("dkdv", self._keys_that_see)

    @property
    def _keys_that_see(self) -> list[Acsr]:
        """Rows of keys where each may join a sum: none whose queries are all left out by a list."""
        return [share.plan.acsr.without_blind() for share in self.transposed]

    @cached_property
    def one_walk(self) -> Walk | None:
        """What gradients of short windows come of; None where two kernels make them, as they do where few heads of
        keys, which many share, leave processors nothing to walk. Raises VerificationError unless it is of the pattern.
        """
        if not isinstance(self.target, Gpu) or self._two_asked:
            return None
        found = self.walk
        if found is None:
            return None
        two = sum(self.candidate(direction).cost.seconds for direction in OF_GRADIENTS)
        if found.seconds(self.problem, self.target) >= two:
            return None
        from weft.planning.verify_walk import verify_walk

        # 0.1 ms, and the kernel looks at no mask: nothing later would tell
        verify_walk(found, self.forward[0].plan.acsr)
        return found

    @property
    def _two_asked(self) -> bool:
        """Whether tilings were asked for that only two kernels of gradients have."""
        return not dict(self.fixed).keys().isdisjoint(OF_GRADIENTS)

    @property
    def gradients_together(self) -> bool:
        """Whether gradients come of one kernel, or of one walk, where the order of sums is free."""
        return self.one_walk is not None or self.in_one is not None

    @cached_property
    def walk(self) -> Walk | None:
        """What one walk would be of; None where the pattern, or the card, has none."""
        known = isinstance(self.target, Gpu) and len(self.forward) == 1 and short.has_kernel(self.problem, self.target)
        return walk_of(self.forward[0].plan, self.problem) if known else None

    @cached_property
    def by_rows(self) -> ByRows | None:
        """The forward by rows; None where tiles are about as fast, were asked for, or rows have no formula."""
        if not isinstance(self.target, Gpu) or "forward" in dict(self.fixed):
            return None
        from weft.planning import row_choice

        tiles = self.candidate("forward")
        if not row_choice.may_gain(tiles, self.problem, self.target):
            return None
        found = self.as_rows()
        return None if isinstance(found, str) or not row_choice.worth_it(found, tiles, self.target) else found

    def as_rows(self) -> ByRows | str:
        """The forward by rows on its GPU, chosen or not, or why there is none."""
        from weft.planning.row_choice import by_rows
        from weft.planning.rowwise import row_plan

        assert isinstance(self.target, Gpu)
        found = row_plan(self)
        return found if isinstance(found, str) else by_rows(found, self.target)

    def candidate(self, direction: Direction) -> Candidate:
        """What a GPU computes with in one direction, and its cost."""
        assert isinstance(self.target, Gpu)
        shares = self.towards(direction)
        ways = [(share.plan.tiling, share.pack) for share in shares if share.plan.tiling is not None]
        return packed(direction, self._rows([s.plan.acsr for s in shares]), self.problem, self.target, ways)

    def _rows(self, acsrs: list[Acsr]) -> Rows:
        return [(acsr, count_heads(share.heads)) for acsr, share in zip(acsrs, self.forward, strict=True)]

    def _planned(self, direction: Direction, acsrs: list[Acsr]) -> tuple[Share, ...]:
        found = plan_rows(direction, self._rows(acsrs), self.problem, self.target, self.fixed)
        pairs = zip(self.forward, found, strict=True)
        return tuple(replace(share, plan=plan, pack=pack) for share, (plan, pack) in pairs)

    def towards(self, direction: Direction) -> tuple[Share, ...]:
        """What the kernels of one direction walk."""
        if direction == "forward":
            return self.forward
        return self.queries if direction == "dq" else self.transposed

    def no_room(self, direction: Direction, tf32: bool = False) -> str:
        """Why the remainder has no kernel of one direction on the GPU that is planned for; "" where it has."""
        if not isinstance(self.target, Gpu):
            return ""
        plans = [share.plan for share in self.towards(direction) if share.plan.blocks is not None]
        stages = [1 if plan.of_blocks is None else plan.of_blocks.stages for plan in plans]
        room, name = self.target.shared, self.target.name
        takes = [shared_of_blocks(direction, self.problem, one, self.target, tf32) for one in stages]
        if max(takes, default=0) <= room:
            return ""
        return (
            f"the pattern has pairs that no affine term covers, in blocks of {BLOCK} x {BLOCK}; their "
            f"kernel for {direction} takes up to {max(takes)} bytes of shared memory, and {name} has {room}"
        )

    def check_room(self, direction: Direction, tf32: bool = False) -> None:
        """Raise UnsupportedKernel where the forward, or a kernel of the gradients, has no room on the card."""
        forward = direction == "forward"
        wrong = [self.no_room(one, tf32) for one in DIRECTIONS if (one == "forward") == forward]
        if not any(wrong):
            return
        cures = ["a smaller head dimension", "a pattern of affine terms alone"]
        if DTYPES[self.problem.dtype] > 2:
            cures.insert(0, "a 16-bit type")
        if tf32:
            cures.insert(0, 'torch.set_float32_matmul_precision("highest")')
        raise UnsupportedKernel(
            f"{'' if forward else 'gradients of '}attention on {self.problem}{' in tf32' if tf32 else ''}",
            next(filter(None, wrong)) + ("" if forward else " (the forward alone has room)"),
            f"use {', '.join(cures[:-1])} or {cures[-1]}",
        )

    @property
    def nnz(self) -> int:
        """Live pairs over all batch rows and query heads."""
        return sum(share.plan.acsr.nnz * count_heads(share.heads) for share in self.forward)

    @property
    def visited(self) -> int:
        """Pairs computed, live or not, over all batch rows and query heads."""
        return sum(share.plan.visited * count_heads(share.heads) for share in self.forward)

    @property
    def nbytes(self) -> int:
        """Bytes of plan tables and of the remainder's blocks, forward and transposed; a plan that is its own transpose
        is held once, and so is a remainder that several plans walk.
        """
        plans = [share.plan for share in self.every_share()]
        tables = {id(plan): plan.nbytes for plan in plans}
        blocks = {id(plan.acsr.remainder): plan.acsr.remainder.nbytes for plan in plans}
        return sum(tables.values()) + sum(blocks.values())

    def every_share(self) -> tuple[Share, ...]:
        """Those of all directions."""
        return (
            self.forward
            + (self.queries if isinstance(self.target, Gpu) else ())
            + self.transposed
            + (self.in_one or ())
        )

    def verify(self) -> None:
        """Raise VerificationError unless the plan computes every live pair once and no other."""
        from weft.planning.verify import verify_pattern, verify_plan
        from weft.planning.verify_walk import verify_walk

        self._verify_heads()
        if self.walk is not None:
            verify_walk(self.walk, self.forward[0].plan.acsr)
        for plan in {id(share.plan): share.plan for share in self.every_share()}.values():
            verify_plan(plan)
        for share in self.forward:
            verify_pattern(self.pattern, share.plan, share.batch, share.head)

    def _verify_heads(self) -> None:
        """Every head is served once, and the transposed plans are those of the same rows and heads."""
        served = np.zeros((self.problem.batch, self.problem.q_heads), np.int64)
        for share in self.forward:
            for b, h in _served(share.heads, self.problem.group):
                served[b, h] += 1
        turned = [(share.plan.acsr.transpose(), share.heads) for share in self.forward]
        if not (served == 1).all():
            wrong = f"{int((served == 0).sum())} heads are served by no plan, {int((served > 1).sum())} by several"
        elif turned != [(share.plan.acsr, share.heads) for share in self.transposed]:
            wrong = "a transposed plan is of other rows than the forward plan"
        else:
            return
        raise VerificationError("verify a plan", wrong, "report this as a defect of weft; do not use the plan")

    def interpret(self, q: Any, k: Any, v: Any, scale: float | None = None) -> tuple[Reals, Reals]:
        """(out, lse) in float64 numpy, tile by tile exactly as the plan says; q, k, v (B, H, length, D) array-likes.

        Slow: for small problems and for doubts. Other options: `weft.planning.interpret`, one head at a time.
        """
        from weft.planning.interpret import forward

        q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
        out, lse = np.zeros((*q.shape[:3], v.shape[3])), np.full(q.shape[:3], -np.inf)
        scoring = Scoring(self.problem.d**-0.5 if scale is None else scale)
        for share in self.forward:
            for b, h in _served(share.heads, self.problem.group):
                kv = h // self.problem.group
                out[b, h], lse[b, h] = forward(share.plan, q[b, h], k[b, kv], v[b, kv], scoring)
        return out, lse

    def explain(self) -> str:
        """The pattern's format, the plan, and why it was chosen, as text."""
        from weft.planning.explain import explain_plan

        return explain_plan(self)

    def __str__(self) -> str:
        return "\n".join([f"{self.pattern}  {self.problem}", *(str(share.plan) for share in self.forward)])


def plan_attention(pattern: Pattern, problem: Problem, target: Target | Gpu = CPU, fixed: Fixed = ()) -> AttentionPlan:
    """Pattern -> Acsr -> TilePlan for every distinct head; raises what `Pattern.check` raises, and
    UnsupportedKernel where a GPU has no room for the forward of a remainder (`AttentionPlan.check_room`).

    fixed: for some directions on a GPU the tiling, instead of what the cost model would choose.
    """
    check_extent(pattern, problem)
    found = distinct_heads(pattern, problem)
    orders = not isinstance(target, Gpu)  # kernels of GPUs gather no rows in another order
    acsrs = [pattern.acsr(problem.m, problem.n, *first, orders=orders) for first in found]
    rows = [(acsr, count_heads(heads)) for acsr, heads in zip(acsrs, found.values(), strict=True)]
    shares = []
    plans = plan_rows("forward", rows, problem, target, fixed)
    for (first, heads), (acsr, _), (tiles, pack) in zip(found.items(), rows, plans, strict=True):
        # rows that were planned before under another pattern's name keep that plan
        shares.append(Share(tiles if tiles.acsr is acsr else replace(tiles, acsr=acsr), tuple(heads), *first, pack))
    plan = AttentionPlan(pattern, problem, target, tuple(shares), fixed)
    plan.check_room("forward")
    return plan


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


def _served(heads: tuple[Heads, ...], group: int) -> Iterator[tuple[int, int]]:
    """(batch row, query head) of every head served."""
    for one in heads:
        for b, kv, g in cartesian(range(*one.batch), range(*one.kv), range(*one.group)):
            yield b, kv * group + g


def count_heads(heads: Iterable[Heads]) -> int:
    """Query heads over all batch rows."""
    return sum((h.batch[1] - h.batch[0]) * (h.kv[1] - h.kv[0]) * (h.group[1] - h.group[0]) for h in heads)
