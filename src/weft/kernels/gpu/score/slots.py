"""Tables of score functions in a program: slots as a call gives them, and as kernels read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Literal

from weft.errors import UnsupportedError
from weft.kernels.gpu.layout import Layout, Options
from weft.kernels.gpu.program import Convert, Slot, Step
from weft.kernels.gpu.score.spec import (
    DENSE,
    DIAGONALS,
    OF_ROWS,
    OF_TILES,
    OFFSETS,
    ORDERED,
    PAIRS,
    POINTERS,
    SHARED,
    Captured,
    Entry,
    Rules,
)
from weft.kernels.gpu.spec import KernelSpec
from weft.planning.attention_plan import AttentionPlan
from weft.planning.families.tile import Under
from weft.planning.tiles import LoopNest, TilePlan
from weft.planning.tiling import Direction
from weft.score.dropout import GROUPED, HEADER, scale, threshold
from weft.score.reads import Read, reads_of, shared_axes
from weft.score.value import composed


@dataclass(frozen=True)
class Tables:
    """What a program has for score functions and dropout.

    rules: of its kernels, None where there are none. memory: the slot of
    each table, and of the seed, by its name among a kernel's arguments; known: lengths, strides, what dropout asks.
    """

    rules: Rules | None = None
    slots: tuple[Slot, ...] = ()
    steps: tuple[Step, ...] = ()
    memory: Mapping[str, str] = field(default_factory=dict)
    known: Mapping[str, float] = field(default_factory=dict)

    def with_entries(self, entries: tuple[Entry, ...]) -> Rules | None:
        """The rules of a kernel that sums gradients of what some reads gave."""
        return None if self.rules is None else replace(self.rules, entries=entries)


def captured_by(layout: Layout, options: Options) -> Tables:
    """Slots table_0, table_1, ... of a call, and seed; what kernels do not read as it is becomes a workspace."""
    slots: list[Slot] = []
    steps: list[Step] = []
    captured: list[Captured] = []
    memory: dict[str, str] = {}
    known: dict[str, float] = {}
    for number, form in enumerate(layout.tables):
        slot = Slot(f"table_{number}", "input", form.dtype, form.shape, form.strides)
        slots.append(slot)
        if form.dtype not in POINTERS:
            dtype = "float32" if form.dtype == "float64" else "int32"
            slots.append(Slot.dense(f"{slot.name}_{dtype}", "workspace", dtype, form.shape))
            steps.append(Convert(slot.name, slots[-1].name))
            slot = slots[-1]
        name = f"Captured{number}"
        memory[name] = slot.name
        known |= {f"{name}_n{axis}": length for axis, length in enumerate(slot.shape)}
        known |= {f"{name}_s{axis}": stride for axis, stride in enumerate(slot.strides)}
        captured.append(replace(_captured(slot), along=form.along))
    if options.dropout:
        slots.append(Slot.dense("seed", "input", "int64", (HEADER + options.tokens if options.tokens else 1,)))
        memory["Seed"] = "seed"
        known |= {"dropped_below": threshold(options.dropout), "kept_scale": scale(options.dropout)}
    rules = Rules(options.score, tuple(captured)) if options.score else None
    return Tables(rules, tuple(slots), tuple(steps), memory, known)


def _captured(slot: Slot) -> Captured:
    reach = sum((length - 1) * stride for length, stride in zip(slot.shape, slot.strides, strict=True))
    dense = not slot.shape or slot.strides[-1] == 1
    return Captured(slot.dtype, len(slot.shape), reach >= 1 << 31, dense)


ITEMS = 65536  # programs along one axis of a grid, at most, and one


# ---- gradients of tables ---------------------------------------------------------------------------------------------
NAMES = {OFFSETS: "offsets", ORDERED: "programs", OF_TILES: "tiles"}
APART = 1 << 29  # sums of programs, at most: 2 GiB
ATOMIC = (SHARED, DIAGONALS, OFFSETS, PAIRS)  # several programs add to one place, in no fixed order


def entries_of(
    plan: AttentionPlan, layout: Layout, options: Options, side: Literal["dq", "dkdv"]
) -> tuple[tuple[Entry, ...], list[Slot]]:
    """What the kernel of one side sums for gradients of tables, and slots entries_0, ..., of the number of each read.

    Sums of rows are (B, Hq, M or N), of diagonals (B, Hq, M + N - 1), of pairs as their tables. Dense ones are (B, Hq,
    M, N), or (M, N) where heads share them. Those of offsets on a grid of X times Y tokens are slots offsets_0, ...,
    (B, Hq, 2 X - 1, 2 Y - 1). Sums along diagonals that have one order are programs_0, ..., (B, Hq, tiles, M + N - 1):
    those of each tile of queries stand apart.
    """
    if not any(options.wanted):
        return (), []
    found = {}
    for number, read in enumerate(reads_of(composed(options.score))):
        if options.wanted[read.table] and (read.kind == "columns") == (side == "dkdv"):
            kind = _kind_of(read, plan, layout, options)
            name = f"{NAMES.get(kind, 'entries')}_{number}"
            shape = _shape(kind, read, plan, layout, options)
            found[Entry(number, kind)] = Slot.dense(name, "output", "float32", shape)
    return tuple(sorted(found, key=lambda one: one.kind)), [*found.values()]


def number_of(slot: str) -> int | None:
    """The number of the read whose sums a slot holds; None of any other slot."""
    name, _, number = slot.rpartition("_")
    return int(number) if name in ("entries", *NAMES.values()) else None


def _kind_of(read: Read, plan: AttentionPlan, layout: Layout, options: Options) -> int:
    problem = plan.problem
    if read.kind in ("rows", "columns"):
        return OF_ROWS
    if read.kind == "diagonals":
        tiles = _tiles_apart(plan, options) if options.deterministic else 0
        return ORDERED if tiles else DIAGONALS
    if read.kind == "offsets" and (grid := walked_grid(plan)) and read.is_on(grid):
        return OFFSETS
    if read.kind == "dense" and layout.tables[read.table].shape[-2:] == (problem.m, problem.n):
        expression = composed(options.score)
        axes = shared_axes(expression, expression.steps[read.step])
        assert axes is not None, "a dense read is at (b, h, q, k)"
        shared = [one and size > 1 for one, size in zip(axes, (problem.batch, problem.q_heads), strict=True)]
        if not any(shared):
            return DENSE
        if all(one or size == 1 for one, size in zip(shared, (problem.batch, problem.q_heads), strict=True)):
            return SHARED
    return PAIRS


def _tiles_apart(plan: AttentionPlan, options: Options) -> int:
    """Tiles of queries of dQ, where one nest has them all, on a line without steps and lists. It is 0 where sums of
    each apart would have no order, or take too much memory.
    """
    p = plan.problem
    shares = plan.unspecialised("dq", under(options))
    if len(shares) != 1 or len(shares[0].plan.nests) != 1 or not in_single_tokens(shares[0].plan):
        return 0
    tiles = shares[0].plan.nests[0].tiles
    return tiles if tiles < ITEMS and p.batch * p.q_heads * tiles * (p.m + p.n) <= APART else 0


def under(options: Options) -> Under:
    """Which options crowd the registers of a kernel."""
    return Under(bool(options.score), any(options.wanted), bool(options.dropout), _by_distance(options.score))


def _by_distance(text: str) -> bool:
    """Whether score functions read no table but by how far apart pairs are."""
    return bool(text) and all(read.kind in ("diagonals", "offsets") for read in reads_of(composed(text)))


def in_single_tokens(plan: TilePlan) -> bool:
    """Whether neighbours in every tile are neighbouring tokens: on one line, without steps, lists and blocks."""
    return plan.blocks is None and lines_in_single_tokens(plan)


def with_dropout(
    spec: KernelSpec, plan: AttentionPlan, direction: Direction, options: Options, own: bool
) -> KernelSpec:  # fmt: skip
    """The kernel of a call, which may drop weights. own: the tables are the plan's."""
    if not options.dropout:
        return spec
    renumbered = bool(options.tokens)
    whole = own and not renumbered and _from_whole_groups(plan, direction, options)
    return replace(spec, dropout=True, renumbered=renumbered, neighbours=whole)


def _from_whole_groups(plan: AttentionPlan, direction: Direction, options: Options) -> bool:
    """Whether on lines rows of tiles are neighbouring tokens, from multiples of 16 on, and so are columns."""
    plans = [share.plan for share in plan.unspecialised(direction, under(options))]
    return all(map(lines_in_single_tokens, plans)) and all(
        nest.box[0] % GROUPED == 0 and not ((nest.q.origin + nest.lanes[0].q_first) % GROUPED).any()
        for one in plans for nest in one.nests
    )  # fmt: skip


def lines_in_single_tokens(plan: TilePlan) -> bool:
    """The same of all but blocks."""
    return all(
        len(nest.box) == 1 and nest.q.order is None and part.k.order is None
        and part.rows.is_every and part.keys.is_every
        and all(axis.lanes.q_step == axis.lanes.k_step == 1 and axis.lanes.queries is None and axis.lanes.keys is None
                for axis in part.axes)
        for nest in plan.nests for part in nest.parts
    )  # fmt: skip


def walked_grid(plan: AttentionPlan, direction: Direction = "dq") -> tuple[int, ...]:
    """The grid of all tokens whose boxes every nest of one direction walks, keys in the steps of queries; () for
    none.
    """
    plans = [share.plan for share in plan.unspecialised(direction)]
    found = {_grid_of(nest) for one in plans for nest in one.nests} | {() for one in plans if one.blocks}
    grid = found.pop() if len(found) == 1 else ()
    return grid if plan.problem.m == plan.problem.n == prod(grid) and len(grid) > 1 else ()


def _grid_of(nest: LoopNest) -> tuple[int, ...]:
    """The grid of a nest, whose keys lie on the same one; () where their steps differ, or tokens are listed."""
    whole = replace(nest.q, origin=0, order=None) == nest.q
    alike = all(
        part.k == nest.q and part.rows.is_every and part.keys.is_every
        and all(axis.lanes.q_step == axis.lanes.k_step for axis in part.axes)
        for part in nest.parts
    )  # fmt: skip
    return tuple(nest.q.shape) if whole and alike else ()


def _shape(kind: int, read: Read, plan: AttentionPlan, layout: Layout, options: Options) -> tuple[int, ...]:
    p = plan.problem
    if kind == OF_ROWS:
        return p.batch, p.q_heads, p.n if read.kind == "columns" else p.m
    if kind in (DIAGONALS, ORDERED):
        apart = (_tiles_apart(plan, options),) * (kind == ORDERED)
        return p.batch, p.q_heads, *apart, max(0, p.m + p.n - 1)
    if kind == OFFSETS:
        return p.batch, p.q_heads, *(2 * length - 1 for length in walked_grid(plan))
    if kind == PAIRS:
        return layout.tables[read.table].shape
    return (p.m, p.n) if kind == SHARED else (p.batch, p.q_heads, p.m, p.n)


def refuse_atomics(plan: AttentionPlan, layout: Layout, options: Options) -> None:
    """Raise UnsupportedError where gradients of tables would be sums in no fixed order, and one was asked for."""
    if not options.deterministic:
        return
    entries, _ = entries_of(plan, layout, options, "dq")
    for one in entries:
        if one.kind in ATOMIC:
            table = layout.tables[reads_of(composed(options.score))[one.number].table]
            raise UnsupportedError(
                f"deterministic gradients of a table of shape {table.shape} on a GPU",
                "several programs add to its entries, in no fixed order",
                "pass deterministic=False, or detach the table, or use the CPU backend",
            )
