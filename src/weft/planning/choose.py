"""Which kernels a plan lists, and which is the cheapest: one loop over families and their configurations.

At a call `weft.kernels.gpu.select` takes one of those that the plan lists.

A GPU's direction is weighed among tilings of all families that have tiles. Then a forward in tiles is weighed against
split keys, and gradients by two kernels against one. On a CPU every Acsr is planned alone (`weft.planning.tiling.cpu`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeAlias, TypeVar

from weft.caching import cached
from weft.planning.families import fused_backward, hopper, one_kernel, split_kv, tile
from weft.planning.families.base import Alternative, Family, InTiles, Pass, Rows, Tiled
from weft.planning.heads import Share
from weft.planning.problem import Problem
from weft.planning.resources import of_blocks
from weft.planning.tiles import TilePlan
from weft.planning.tiling import Direction, Tiling
from weft.planning.tiling.cpu import plan_tiles
from weft.planning.tiling.gpu import plan_for_device
from weft.target import Gpu, Target

Fixed: TypeAlias = tuple[tuple[Direction, Tiling], ...]  # tilings that somebody asked for
Asked = TypeVar("Asked")
Found = TypeVar("Found", bound=Alternative)
Beside: TypeAlias = tuple[Family[InTiles, Alternative], ...]
TILED: tuple[Family[Pass, Tiled], ...] = (tile, hopper)
FORWARDS: Beside = (split_kv,)
BACKWARDS: Beside = (fused_backward, one_kernel)


@dataclass(frozen=True, eq=False)
class Decision(Generic[Found]):
    """weighed: all alternatives, in the order of families. against: of families that have none, the reason."""

    weighed: tuple[Found, ...]
    against: tuple[tuple[str, str], ...] = ()

    @property
    def taken(self) -> Found:
        """The cheapest, the first of equals; nothing is priced where there is no choice."""
        return self.weighed[0] if len(self.weighed) == 1 else min(self.weighed, key=lambda one: one.compared)

    @property
    def listed(self) -> tuple[Found, ...]:
        """What a call may take, in the order in which it asks.

        These are all that cost less than the first alternative, and then that one, which serves every layout and
        option.
        """
        first, *others = self.weighed
        return (*(one for one in others if one.compared < first.compared), first)


def weigh(asked: Asked, families: Sequence[Family[Asked, Found]]) -> Decision[Found]:
    """Every configuration of every family that has a kernel for what is asked."""
    weighed: list[Found] = []
    against = []
    for family in families:
        reason = family.reasons_against(asked)
        if reason:
            against.append((family.NAME, reason))
            continue
        weighed += [family.cost(asked, config) for config in family.configs(asked)]
    return Decision(tuple(weighed), tuple(against))


def tilings(asked: Pass, tiling: Tiling | None = None) -> Decision[Tiled]:
    """How one direction is tiled. tiling: what somebody asked for."""
    return weigh(asked, TILED) if tiling is None else Decision((asked.alike(tiling),))


def beside_tiles(asked: InTiles, families: Beside, fixed: bool) -> Decision[Alternative]:
    """What computes a forward, or all gradients. fixed: tilings were asked for, which only tiles have."""
    if fixed:
        return Decision((asked,), tuple((family.NAME, "tilings were asked for") for family in families))
    found = weigh(asked, families)
    return Decision((asked, *found.weighed), found.against)


def offered(asked: Pass) -> tuple[Tiling, ...]:
    """The tilings that a call with such rows chooses from."""
    return tuple(dict.fromkeys(one.tilings[0] for one in tilings(asked).weighed if len(set(one.ways)) == 1))


def plan_rows(
    direction: Direction, rows: Rows, problem: Problem, target: Target | Gpu, fixed: Fixed
) -> list[tuple[TilePlan, int]]:
    """(plan, pack) of one direction, in the order of rows."""
    if not isinstance(target, Gpu):
        return [(plan_tiles(acsr, problem, target), 0) for acsr, _ in rows]
    taken = tilings(Pass(direction, rows, problem, target), dict(fixed).get(direction)).taken
    pairs = zip(taken.plans, taken.ways, strict=True)
    return [(_with_blocks(direction, plan, problem, target), pack) for plan, (_, pack) in pairs]


def _with_blocks(direction: Direction, plan: TilePlan, problem: Problem, gpu: Gpu) -> TilePlan:
    """With a tiling of its remainder, if it has one; see `of_blocks`."""
    if plan.blocks is None or plan.tiling is None:
        return plan
    return replace(plan, of_blocks=of_blocks(direction, problem, plan.tiling, gpu))


@cached(128)  # tables are packed once for the same shares
def unspecialised(
    direction: Direction, shares: tuple[Share, ...], problem: Problem, target: Target | Gpu,
    under: tile.Under = tile.PLAIN,
) -> tuple[Share, ...]:  # fmt: skip
    """Shares in tiles whose warps all do the same."""
    if not isinstance(target, Gpu):
        return shares
    specialised = any(share.plan.tiling and share.plan.tiling.groups for share in shares)
    rank = max((len(nest.box) for share in shares for nest in share.plan.nests), default=1)
    narrow = tile.narrow(direction, problem, rank, target, under)
    if not specialised and narrow is None:
        return shares
    tiling = narrow or tile.usual(direction, problem, rank, target)
    plans = (plan_for_device(share.plan.acsr, problem, target, tiling) for share in shares)
    return tuple(
        replace(share, plan=_with_blocks(direction, plan, problem, target))
        for share, plan in zip(shares, plans, strict=True)
    )
