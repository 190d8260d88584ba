"""The plan of one attention call: heads and batch rows with the same pattern share a TilePlan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from weft.acsr.format import Acsr
from weft.acsr.interpret import Reals
from weft.errors import UnsupportedKernel
from weft.pattern.algebra import Pattern
from weft.planning import explain, interpret, verify, verify_fused
from weft.planning.choose import (
    BACKWARDS,
    FORWARDS,
    Beside,
    Decision,
    Fixed,
    beside_tiles,
    plan_rows,
    tilings,
    unspecialised,
)
from weft.planning.families import components, fused_backward, hopper, one_kernel, split_kv, tile
from weft.planning.families.base import Alternative, InTiles, Pass, Tiled
from weft.planning.families.components import Components
from weft.planning.families.fused_backward import Fused, FusedBackward
from weft.planning.families.one_kernel import OneKernel
from weft.planning.families.split_kv import ByRows
from weft.planning.heads import Share, check_extent, count_heads, distinct_heads, rows_of
from weft.planning.problem import DTYPES, Problem
from weft.planning.tiling import DIRECTIONS, OF_GRADIENTS, Direction
from weft.target import CPU, Gpu, Target


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

    def specialised(self, direction: Direction) -> tuple[Share, ...] | None:
        """The tiles of warp-specialised kernels; None where other kernels compute the direction."""
        shares = self.towards(direction)
        named = next((x.plan.tiling for x in shares if x.plan.tiling and x.plan.tiling.groups), None)
        return shares if named and not hopper.reasons_against(self.asked(direction), named) else None

    def unspecialised(self, direction: Direction, under: tile.Under = tile.PLAIN) -> tuple[Share, ...]:
        """Tiles whose warps all do the same, for calls that allow no others.

        under: options, for which narrower tiles may serve than the plan's. A fixed tiling stays as it is.
        """
        under = tile.PLAIN if direction in dict(self.fixed) else under
        return unspecialised(direction, self.towards(direction), self.problem, self.target, under)

    # ---- what computes it ----
    @cached_property
    def forwards(self) -> Decision[Alternative]:
        """What computes the forward on a GPU: tiles, or split keys."""
        return self._beside(("forward",), FORWARDS)

    @cached_property
    def backwards(self) -> Decision[Alternative]:
        """What computes gradients on a GPU where the order of sums is free: two kernels, or one."""
        return self._beside(OF_GRADIENTS, BACKWARDS)

    def _beside(self, directions: tuple[Direction, ...], families: Beside) -> Decision[Alternative]:
        asked = InTiles(self.pattern, self.forward, tuple(self.candidate(one) for one in directions))
        return beside_tiles(asked, families, not dict(self.fixed).keys().isdisjoint(directions))

    @cached_property
    def by_rows(self) -> ByRows | None:
        """The forward by rows; None where tiles are about as fast, were asked for, or rows have no formula."""
        if not isinstance(self.target, Gpu):
            return None
        taken = self.forwards.taken
        return taken if isinstance(taken, ByRows) else None

    def as_rows(self) -> ByRows | str:
        """The forward by rows on its GPU, chosen or not, or why there is none."""
        asked = InTiles(self.pattern, self.forward, (self.candidate("forward"),))
        if isinstance(asked.rows, str):
            return asked.rows
        (shape,) = split_kv.configs(asked)
        return split_kv.cost(asked, shape)

    @cached_property
    def in_one(self) -> tuple[Share, ...] | None:
        """Tiles of keys for a backward in one kernel, which is not deterministic.

        None unless one kernel fits and is predicted to be clearly faster than two.
        """
        named = dict(self.fixed).get("dkdv")
        if named in hopper.SUMS:
            against = hopper.no_list if named == hopper.LISTED else hopper.no_sums
            if not against(self.asked("dkdv")):
                return self.transposed
        listed = self.backwards.listed if isinstance(self.target, Gpu) else ()
        every = [one for one in listed if isinstance(one, OneKernel)]
        if not every:
            return None
        found = min(every, key=lambda one: one.compared)
        return tuple(replace(share, plan=plan, pack=0) for share, plan in zip(self.forward, found.plans, strict=True))

    @cached_property
    def summing(self) -> tuple[Share, ...]:
        """Tiles of keys for a backward in one kernel, be it chosen or asked for in spite of what is predicted."""
        if self.in_one:
            return self.in_one
        found = self._planned("dkdv", [share.plan.acsr.without_blind() for share in self.transposed])
        by_boxes = any(share.plan.tiling in hopper.BOXED.values() for share in found)
        # what warp groups mask on grids has more coordinates than kernels of tiles have places for
        return unspecialised("dkdv", found, self.problem, self.target) if by_boxes else found

    @property
    def sums_by_groups(self) -> bool:
        """Whether the kernel of `summing` is one of warp groups."""
        return any(share.plan.tiling in hopper.SUMS for share in self.summing)

    @property
    def sums_of_lists(self) -> bool:
        """Whether that kernel walks lists of whole blocks."""
        return any(share.plan.tiling == hopper.LISTED for share in self.summing)

    @cached_property
    def fused_backward(self) -> FusedBackward | None:
        """The fused backward that calls take; None where other kernels make gradients.

        Raises VerificationError unless it computes the pattern.
        """
        listed = self.backwards.listed if isinstance(self.target, Gpu) else ()
        if not any(isinstance(one, Fused) for one in listed) or self.fused is None:
            return None
        # 0.1 ms, and the kernel looks at no mask: nothing later would tell
        verify_fused.verify_fused(self.fused, self.forward[0].plan.acsr)
        return self.fused

    @cached_property
    def components(self) -> Components | str:
        """Tiles of the pattern's components, which calls with a bias may take; or why there are none."""
        if not isinstance(self.target, Gpu):
            return "its kernels are for GPUs"
        return components.components_of(self.forward, self.problem)

    @property
    def gradients_together(self) -> bool:
        """Whether gradients come of one kernel where the order of sums is free."""
        return self.fused_backward is not None or self.in_one is not None

    @property
    def fused(self) -> FusedBackward | None:
        """The fused backward of the pattern, taken or not; None where the pattern or the card has none."""
        known = isinstance(self.target, Gpu)
        found = fused_backward.fused_backward(self.forward, self.problem, self.target) if known else ""
        return found if isinstance(found, FusedBackward) else None

    def candidate(self, direction: Direction) -> Tiled:
        """What a GPU computes with in one direction, and its cost."""
        shares = self.towards(direction)
        ways = tuple((share.plan.tiling, share.pack) for share in shares if share.plan.tiling is not None)
        return Tiled(self.asked(direction), ways)

    def asked(self, direction: Direction) -> Pass:
        """What was asked of families in one direction."""
        assert isinstance(self.target, Gpu)
        return Pass(direction, rows_of(self.towards(direction)), self.problem, self.target)

    def _planned(self, direction: Direction, acsrs: list[Acsr]) -> tuple[Share, ...]:
        rows = [(acsr, count_heads(share.heads)) for acsr, share in zip(acsrs, self.forward, strict=True)]
        found = plan_rows(direction, rows, self.problem, self.target, self.fixed)
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
        plans = [share.plan for share in self.towards(direction)]
        return tile.no_room(direction, plans, self.problem, self.target, tf32)

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
        """Bytes of plan tables and of the remainder's blocks, forward and transposed.

        A plan that is its own transpose counts once, and so does a remainder that several plans walk.
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
        verify.verify_heads(self.forward, self.transposed, self.problem)
        if self.fused is not None:
            verify_fused.verify_fused(self.fused, self.forward[0].plan.acsr)
        if isinstance(self.components, Components):
            components.verify_components(self.components, self.forward[0].plan.acsr)
        for plan in {id(share.plan): share.plan for share in self.every_share()}.values():
            verify.verify_plan(plan)
        for share in self.forward:
            verify.verify_pattern(self.pattern, share.plan, share.batch, share.head)

    def interpret(self, q: Any, k: Any, v: Any, scale: float | None = None) -> tuple[Reals, Reals]:
        """(out, lse) in float64 numpy, tile by tile exactly as the plan says; q, k, v (B, H, length, D) array-likes.

        Slow: for small problems and for doubts. Other options: `weft.planning.interpret`, one head at a time.
        """
        return interpret.attention(self.forward, self.problem, (q, k, v), scale)

    def explain(self) -> str:
        """The pattern's format, the plan, and why it was chosen, as text."""
        lines = list(explain.head(self.pattern, self.problem, self.forward, self.nbytes))
        if not isinstance(self.target, Gpu):
            return "\n".join(lines)
        fixed = dict(self.fixed)
        for direction in DIRECTIONS:
            decision = tilings(self.asked(direction), fixed.get(direction))
            wrong = self.no_room(direction)
            lines += explain.tilings(self.candidate(direction), decision, direction in fixed, wrong)
            if direction == "forward" and self.nnz:
                lines += explain.forwards(self.forwards, self.problem, self.target, self.nnz)
        wrong = self.no_room("dq") or self.no_room("dkdv")
        lines += explain.backwards(self.backwards, self.problem, self.target, wrong)
        return "\n".join([*lines, *explain.of_pairs(self._without_pairs(), self.components)])

    def _without_pairs(self) -> Iterator[str]:
        """Families that were taken and have no place for what depends on the numbers of a pair."""
        if any(self.specialised(direction) for direction in DIRECTIONS):
            yield hopper.NAME
        if self.by_rows is not None:
            yield split_kv.NAME
        if self.fused_backward is not None:
            yield fused_backward.NAME
        if self.in_one is not None:
            yield one_kernel.NAME

    def __str__(self) -> str:
        return "\n".join([f"{self.pattern}  {self.problem}", *(str(share.plan) for share in self.forward)])


def plan_attention(pattern: Pattern, problem: Problem, target: Target | Gpu = CPU, fixed: Fixed = ()) -> AttentionPlan:
    """Pattern -> Acsr -> TilePlan for every distinct head.

    fixed: for some directions on a GPU the tiling, instead of what the cost model would choose. Raises what
    `Pattern.check` raises. Raises UnsupportedKernel where a GPU has no room for the forward of a remainder
    (`AttentionPlan.check_room`).
    """
    check_extent(pattern, problem)
    found = distinct_heads(pattern, problem)
    acsrs = [pattern.acsr(problem.m, problem.n, *first) for first in found]
    rows = [(acsr, count_heads(heads)) for acsr, heads in zip(acsrs, found.values(), strict=True)]
    shares = []
    plans = plan_rows("forward", rows, problem, target, fixed)
    for (first, heads), (acsr, _), (tiles, pack) in zip(found.items(), rows, plans, strict=True):
        # rows that were planned before under another pattern's name keep that plan
        shares.append(Share(tiles if tiles.acsr is acsr else replace(tiles, acsr=acsr), tuple(heads), *first, pack))
    plan = AttentionPlan(pattern, problem, target, tuple(shares), fixed)
    plan.check_room("forward")
    return plan
