"""What families of kernels are asked, and what they answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

from weft.acsr.format import Acsr
from weft.pattern.algebra import Pattern
from weft.planning.cost import Cost, converting, cost, in_memory, in_turn
from weft.planning.heads import Share
from weft.planning.problem import Problem
from weft.planning.rowwise import RowPlan, row_plan
from weft.planning.tiles import TilePlan
from weft.planning.tiling import Direction, Tiling
from weft.planning.tiling.gpu import plan_for_device
from weft.planning.work import Work, slots_of, works
from weft.target import Gpu

Rows: TypeAlias = Sequence[tuple[Acsr, int]]  # of every distinct head, and how many heads share them
Way: TypeAlias = tuple[Tiling, int]  # how rows are computed: their tiling, and the number of their pack
# What terms rows have: lists of tokens in some; several in some; else one.
Terms = Literal["one", "several", "listed"]
MOST = 4  # distinct heads that are looked at; of more of them, as many say what all take
WORTH = 0.97  # what heads apart may take at most of what they take together: predictions are off by a few percent


# ---- what is asked ---------------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class Pass:
    """One direction of a call on a GPU. rows: of queries, or where keys stay of keys."""

    direction: Direction
    rows: Rows
    problem: Problem
    gpu: Gpu

    @cached_property
    def terms(self) -> Terms:
        """What terms the rows have."""
        terms = [term for acsr, _ in self.rows for term in acsr.terms]
        if not all(term.rows.is_every and term.keys.is_every for term in terms):
            return "listed"
        return "several" if any(len(acsr.terms) > 1 for acsr, _ in self.rows) else "one"

    @cached_property
    def rank(self) -> int:
        """The most axes of a term."""
        return max((term.rank for acsr, _ in self.rows for term in acsr.terms), default=1)

    def alike(self, tiling: Tiling) -> Tiled:
        """All rows in one tiling, as one pack."""
        return Tiled(self, ((tiling, 0),) * len(self.rows))

    def planned(self, tiling: Tiling) -> TilePlan:
        """The first head's rows in one tiling."""
        return plan_for_device(self.rows[0][0], self.problem, self.gpu, tiling)


# ---- what is answered ------------------------------------------------------------------------------------------------
class Alternative(Protocol):
    """One way to compute what is asked.

    seconds: predicted. compared: the seconds that it is weighed by, more where its prediction may be off.
    """

    @property
    def family(self) -> str: ...
    @property
    def seconds(self) -> float: ...
    @property
    def compared(self) -> float: ...


@dataclass(frozen=True, eq=False)
class Tiled:
    """All rows of one direction in tiles.

    ways: of each of the rows. Rows of one pack have one tiling and run side by side where they can; packs follow each
    other. dK and dV are counted as they are computed where the order of sums is free.
    """

    asked: Pass
    ways: tuple[Way, ...]

    @property
    def family(self) -> str:
        return "hopper" if any(tiling.groups for tiling, _ in self.ways) else "tile"

    @property
    def tilings(self) -> tuple[Tiling, ...]:
        """One for each pack."""
        return tuple(tiling for _, tiling in sorted({number: tiling for tiling, number in self.ways}.items()))

    @cached_property
    def plans(self) -> tuple[TilePlan, ...]:
        """Of each of the rows."""
        given, pairs = self.asked, zip(self.asked.rows, self.ways, strict=True)
        return tuple(plan_for_device(acsr, given.problem, given.gpu, tiling) for (acsr, _), (tiling, _) in pairs)

    @cached_property
    def packs(self) -> dict[Way, tuple[Work, ...]]:
        """The waves of each pack."""
        given = self.asked
        members = {way: [i for i, own in enumerate(self.ways) if own == way] for way in dict.fromkeys(self.ways)}
        heads = [(plan, count) for plan, (_, count) in zip(self.plans, given.rows, strict=True)]
        return {
            way: works([heads[i] for i in some], slots_of(given.gpu), given.direction == "dkdv")
            for way, some in members.items()
        }

    @property
    def works(self) -> tuple[Work, ...]:
        return tuple(work for pack in self.packs.values() for work in pack)

    @cached_property
    def cost(self) -> Cost:
        direction, problem, gpu, every = self.asked.direction, self.asked.problem, self.asked.gpu, self.works
        packs = ((tiling, in_memory(pack, direction, every)) for (tiling, _), pack in self.packs.items())
        found = in_turn([cost(pack, direction, problem, tiling, gpu) for tiling, pack in packs])
        return replace(found, merging=found.merging + converting(every, direction, problem, gpu))

    @property
    def seconds(self) -> float:
        return self.cost.seconds

    @property
    def compared(self) -> float:
        rows = self.asked.rows
        if len(rows) > MOST:
            some = replace(self.asked, rows=[rows[i * len(rows) // MOST] for i in range(MOST)])
            return some.alike(self.tilings[0]).seconds
        return self.seconds / (WORTH if len(self.packs) > 1 else 1.0)


@dataclass(frozen=True, eq=False)
class InTiles:
    """A forward, or gradients, in tiles: what other families are weighed against.

    shares: of queries. tiles: of the forward; or of dQ, and of dK and dV.
    """

    pattern: Pattern
    shares: tuple[Share, ...]
    tiles: tuple[Tiled, ...]

    @property
    def family(self) -> str:
        return "tile"

    @property
    def problem(self) -> Problem:
        return self.tiles[0].asked.problem

    @property
    def gpu(self) -> Gpu:
        return self.tiles[0].asked.gpu

    @cached_property
    def seconds(self) -> float:
        return sum(one.seconds for one in self.tiles)

    @property
    def compared(self) -> float:
        return self.seconds

    @cached_property
    def rows(self) -> RowPlan | str:
        """The same rows by formula, or why they have none."""
        return row_plan(self.pattern, self.problem, self.shares)


Asked_contra = TypeVar("Asked_contra", contravariant=True)
Found_co = TypeVar("Found_co", bound=Alternative, covariant=True)


class Family(Protocol[Asked_contra, Found_co]):
    """A module of `weft.planning.families`."""

    NAME: str

    def reasons_against(self, asked: Asked_contra) -> str:
        """Why the family has no kernel for what is asked; "" where it has."""

    def configs(self, asked: Asked_contra) -> Iterable[Any]:
        """The configurations that are worth weighing."""

    def cost(self, asked: Asked_contra, config: Any) -> Found_co:
        """A configuration with what it is predicted to take."""
