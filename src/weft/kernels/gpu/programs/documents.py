"""The programs of documents whose lengths only the device knows: tables are made there, and kernels of tiles read them.

q, k and v are packed, (1, H, T, D); slots of_queries and of_keys have running sums, (documents + 1,) in int32. Queries
of no document have out 0 and lse -inf, keys of none have no gradients. No length of a document is known to the host.
Keys may lie in pages instead, which a slot block_table names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from weft.kernels.gpu.compile.source import Source
from weft.kernels.gpu.configure import overlaps
from weft.kernels.gpu.documents import spec as documents
from weft.kernels.gpu.documents.spec import GroupPlaces, Places, TablesSpec, group_places_of, places_of
from weft.kernels.gpu.entry import module
from weft.kernels.gpu.layout import Layout, Options
from weft.kernels.gpu.program import Argument, Known, Launch, LaunchProgram, OnDevice, Pointer, Slot, Strides, Table
from weft.kernels.gpu.programs.backward import keys_program, queries_program, summing_program
from weft.kernels.gpu.programs.forward import forward_program
from weft.kernels.gpu.programs.launches import Packed
from weft.kernels.gpu.select import may_specialise
from weft.kernels.gpu.tables.batches import Wave, Waves
from weft.kernels.gpu.tables.pack import Kind, Place
from weft.kernels.gpu.tables.tile_scheduler import HEADS
from weft.planning.attention_plan import AttentionPlan
from weft.planning.problem import Problem
from weft.planning.tiling import Direction, Tiling
from weft.planning.tma import TmaExtent
from weft.target import Gpu

ROUNDS, MANY = 2, 16  # see `_together`
BLOCK = 64  # tiles of a program, see `documents.kernel`
IMPORTS = "kernel import Documents, Made, Paged, tables_of", "spec import TablesSpec"
OF_ITEMS = "blocks import Blocks, items_of", "kernel import Documents"
OF_BLOCKS = "blocks import Blocks, blocks_of", "spec import TablesSpec"
SUMS = ("of_queries", "of_keys")
TABLES, BOUNDS = "_tables_0", "_bounds"  # after a direction, names of slots
INTEGERS = ("documents", "my_length", "their_length", "tiles", "group", "items_at", "heads_at")
OF_PAGES = ("table_row", "width", "pages", "step", "room", "pages_at")


class PagedKeys(NamedTuple):
    """Keys (pages, Hkv, page, D) and a block table (documents, width), with rows `row` apart.

    strides: of keys and of values. step: tokens from the first of a page to the first of the next, whole and the same
    in both.
    """

    pages: int
    page: int
    width: int
    row: int
    step: int
    strides: tuple[Strides, Strides]

    @property
    def room(self) -> int:
        """Tokens of a document."""
        return self.width * self.page


@dataclass(frozen=True)
class Documents:
    """So many documents under one pattern, and the tilings of each direction. paged: where keys lie in pages. groups:
    of a forward by warp groups, where it may be; sums: of gradients by them.
    """

    count: int
    pattern: documents.Known
    tilings: Mapping[Direction, Tiling]
    paged: PagedKeys | None = None
    groups: Tiling | None = None
    sums: Tiling | None = None


@dataclass(frozen=True)
class Made:
    """Tables of one direction, and the launches that make them."""

    packed: Packed
    launches: tuple[Launch, ...]
    bounds: Table
    direction: Direction


# ---- programs --------------------------------------------------------------------------------------------------------
def documents_forward_program(
    plan: AttentionPlan, layout: Layout, options: Options, asked: Documents
) -> LaunchProgram:  # fmt: skip
    """As `forward_program`, with the running sums, and the block table if there is one, as inputs after all others.

    plan: of the whole problem, whose own tiles are not used; of keys in pages n is the room of a document.
    """
    if asked.groups is not None and may_specialise(layout, options, plan.problem):
        made = group_tables_made("forward", plan, asked, asked.groups)
    else:
        made = tables_made("forward", plan.problem, asked)
    return _making(forward_program(plan, layout, options, made.packed), [made], asked)


def documents_backward_program(
    plan: AttentionPlan, layout: Layout, options: Options, asked: Documents
) -> LaunchProgram:  # fmt: skip
    """As `backward_program`, but not of keys in pages.

    Warp groups add to dQ in memory where documents say so and the order of sums is free. Else two kernels compute
    gradients, with the same bits every time.
    """
    free = asked.sums is not None and not options.deterministic
    if asked.sums is not None and free and may_specialise(layout, options, plan.problem):
        made = group_tables_made("dkdv", plan, asked, asked.sums)
        return _making(summing_program(plan, layout, options, made.packed), [made], asked)
    of_queries, of_keys = (tables_made(one, plan.problem, asked) for one in ("dq", "dkdv"))
    found = queries_program(plan, layout, options, of_queries.packed)
    keys = keys_program(plan, layout, options, False, of_keys.packed)
    both = found.then(keys, ("dq", "dk", "dv") + ("delta",) * options.with_delta)
    return _making(both, [of_queries, of_keys], asked)


def _making(program: LaunchProgram, made: list[Made], asked: Documents) -> LaunchProgram:
    """A program that makes tables before its first launch."""
    names = {f"{one.direction}{TABLES}": one for one in made}
    slots = [replace(slot, role="workspace") if slot.name in names else slot for slot in program.slots]
    slots += [Slot.dense(name, "input", "int32", (asked.count + 1,)) for name in SUMS]
    if asked.paged is not None:
        slots = [_paged(slot, asked.paged) for slot in slots]
        slots.append(Slot("block_table", "input", "int32", (asked.count, asked.paged.width), (asked.paged.row, 1)))
    bounds = {f"{one.direction}{BOUNDS}": one.bounds for one in made}
    slots += [table.slot(name) for name, table in bounds.items()]
    tables = {name: table for name, table in program.tables.items() if name not in names}
    first = next(at for at, step in enumerate(program.steps) if isinstance(step, Launch))
    steps = (*program.steps[:first], *(x for one in made for x in one.launches), *program.steps[first:])
    return LaunchProgram(f"documents_{program.name}", tuple(slots), steps, tables | bounds)


def apart(program: LaunchProgram) -> tuple[LaunchProgram, LaunchProgram]:
    """(what makes the tables of a program of documents, the rest), where keys do not lie in pages.

    The first has the running sums as inputs and tables as outputs; the second has those tables as its last inputs.
    """
    names = [slot.name for slot in program.slots if slot.name.endswith(TABLES) and slot.role == "workspace"]
    making = tuple(one for one in program.launches if one.written and {*one.written} <= {*names})
    bounds = {name: table for name, table in program.tables.items() if name.endswith(BOUNDS)}
    slots = [program.by_name[name] for name in (*SUMS, *bounds)]
    slots += [replace(program.by_name[name], role="output") for name in names]
    rest = [slot for slot in program.slots if slot.name not in (*SUMS, *bounds, *names)]
    rest += [replace(program.by_name[name], role="input") for name in names]
    tables = {name: table for name, table in program.tables.items() if name not in bounds}
    steps = tuple(step for step in program.steps if step not in making)
    return (
        LaunchProgram(f"tables of {program.name}", tuple(slots), making, bounds),
        LaunchProgram(f"{program.name}, given tables", tuple(rest), steps, tables),
    )


def _paged(slot: Slot, paged: PagedKeys) -> Slot:
    if slot.name not in ("k", "v"):
        return slot
    return replace(slot, shape=(paged.pages, slot.shape[1], paged.page, slot.shape[3]))


# ---- tables ----------------------------------------------------------------------------------------------------------
def tables_made(direction: Direction, problem: Problem, asked: Documents) -> Made:
    """The tables of one direction, in slot `{direction}_tables_0`, from bounds in `{direction}_bounds`."""
    tiling, of_keys, paged = asked.tilings[direction], direction == "dkdv", asked.paged
    lengths = problem.m, problem.n if paged is None else asked.count * paged.room
    mine, theirs = reversed(lengths) if of_keys else lengths
    members = problem.kv_heads if of_keys else problem.q_heads
    places = places_of(asked.count, mine, tiling.rows, members, 0 if paged is None else paged.width)
    wave = _wave(tiling, places, members, asked.pattern.are_lines(of_keys))
    table = Table(np.broadcast_to(np.int32(0), (places.size,)))  # whose words the device makes
    packed = Packed(Waves((wave,), covers=True), (table,), None, page=0 if paged is None else paged.page)
    spec = TablesSpec(tiling.rows, tiling.cols, of_keys, asked.pattern.from_end, paged is not None)
    sums = reversed(SUMS) if of_keys else SUMS
    arguments: list[Argument] = [*map(OnDevice, sums), Pointer(f"{direction}{BOUNDS}")]
    arguments += [Known(x) for x in (asked.count, mine, theirs, places.tiles, problem.group, places.items_at)]
    arguments.append(Known(places.heads_at))
    if paged is not None:
        arguments.append(Pointer("block_table"))
        arguments += [Known(x) for x in (paged.row, paged.width, paged.pages, paged.step, paged.room, places.pages_at)]
    arguments.append(Pointer(f"{direction}{TABLES}", writes=True))
    launch = Launch(spec, _source(spec), (-(-places.tiles // BLOCK), members, 1), tuple(arguments))
    return Made(packed, (launch,), Table(asked.pattern.bounds(of_keys)), direction)


def group_tables_made(direction: Direction, plan: AttentionPlan, asked: Documents, tiling: Tiling) -> Made:
    """The tables of one direction that warp groups read, in the same slots."""
    problem, of_keys, target = plan.problem, direction == "dkdv", plan.target
    (rows, heads), (cols, _) = ((problem.m, problem.q_heads), (problem.n, problem.kv_heads))[:: -1 if of_keys else 1]
    places = group_places_of(asked.count, rows, tiling, heads)
    programs = min(target.processors if isinstance(target, Gpu) else 1, heads * places.tiles)
    spec = TablesSpec(
        tiling.rows, tiling.cols, of_keys, asked.pattern.from_end, groups=tiling.groups,
        together=1 if of_keys else _together(heads, rows // tiling.rows, programs), chained=overlaps(target),
    )  # fmt: skip
    nothing = np.zeros(0, np.int32)
    wave = Wave(
        nothing, Kind(1, tiling, True, False, False), places.heads_at, heads, places.tiles, False, several=False,
        terms=1, more=False, place=Place(places.record, 1, documents.HEADER, places.items_at), merges=False,
        span=max(tiling.rows, tiling.cols), whole=False, lines=False,
        reach=(TmaExtent(0, 1, 1, rows), TmaExtent(0, 1, 1, cols)), blocks_at=places.blocks_at, counted=True,
    )  # fmt: skip
    made: list[Argument] = [Known(x) for x in places[:-1]]
    written = Pointer(f"{direction}{TABLES}", writes=True)
    arguments: list[Argument] = [*map(OnDevice, reversed(SUMS) if of_keys else SUMS), Pointer(f"{direction}{BOUNDS}")]
    arguments += [Known(asked.count), Known(rows), Known(cols), *made, written]
    items = Launch(spec, _source(spec), (places.tiles, 1, 1), tuple(arguments))
    spec = spec._replace(blocks=True)
    arguments = [Known(x) for x in (heads, rows, cols, problem.group, programs)]
    blocks = Launch(spec, _source(spec), (-(-places.tiles // documents.ORDERED), 1, 1), (*arguments, *made, written))
    table = Table(np.broadcast_to(np.int32(0), (places.size,)))  # whose words the device makes
    packed = Packed(Waves((wave,), covers=True), (table,), None, groups=True)
    return Made(packed, (items, blocks), Table(asked.pattern.bounds(of_keys)), direction)


def _together(heads: int, tiles: int, programs: int) -> int:
    """Heads whose blocks of queries are sorted together: of ROUNDS rounds of programs, but of one where there are MANY
    in all.

    With fewer rounds the same programs may have the longest blocks of all heads, which counts where rounds are few.
    """
    found, rounds = HEADS, ROUNDS if heads * tiles < MANY * programs else 1
    while found < heads and found * tiles < rounds * programs:
        found *= 2
    return found


def _wave(tiling: Tiling, places: Places, members: int, lines: bool) -> Wave:
    """One launch of a kernel that reads tables with a member for each tile of each head."""
    nothing = np.zeros(0, np.int32)
    return Wave(
        nothing, Kind(1, tiling, True, False, False), places.heads_at, members * places.tiles, 1, True,
        several=False, terms=1, more=False, place=None, merges=False, span=max(tiling.rows, tiling.cols), whole=False,
        lines=lines,
    )  # fmt: skip


def _types(spec: TablesSpec) -> Iterator[tuple[str, str]]:
    if spec.groups:
        if not spec.blocks:
            yield from (("OfRows", "*i32"), ("OfCols", "*i32"), ("Bounds", "*i32"))
        of_blocks = ("heads", "my_length", "their_length", "group", "programs")
        integers = of_blocks if spec.blocks else INTEGERS[:3]
        yield from ((name, "i32") for name in (*integers, *GroupPlaces._fields[:-1]))
        yield "Tables", "*i32"
        return
    yield from (("OfRows", "*i32"), ("OfCols", "*i32"), ("Bounds", "*i32"))
    yield from ((name, "i32") for name in INTEGERS)
    if spec.paged:
        yield "BlockTable", "*i32"
        yield "table_row", "i64"
        yield from ((name, "i32") for name in OF_PAGES[1:])
    yield "Tables", "*i32"


@lru_cache(maxsize=64)
def _source(spec: TablesSpec) -> Source:
    types = tuple(_types(spec))
    about = f"{spec.name}\n\nWritten by weft; 4 warps."
    every = "every = Documents(OfRows, OfCols, documents, my_length, their_length)"
    body: list[str] = [f"C: tl.constexpr = {spec!r}"]
    lines: tuple[str, ...] = IMPORTS
    if spec.groups:
        lines = OF_BLOCKS if spec.blocks else (*OF_ITEMS, IMPORTS[1])
        body.append(f"made = Blocks(Tables, {', '.join(GroupPlaces._fields[:-1])})")
        last = "blocks_of(C, made, (heads, my_length, their_length), group, programs)"
        body += [last] if spec.blocks else [every, "items_of(C, every, made, Bounds)"]
    else:
        paged = f"Paged(BlockTable, {', '.join(OF_PAGES)})" if spec.paged else "()"
        body += [every, f"paged = {paged}"]
        body.append("tables_of(C, every, Made(Tables, tiles, items_at, heads_at), Bounds, group, paged)")
    imports = "".join(f"from weft.kernels.gpu.documents.{line}\n" for line in lines) + "\n"
    text = module(f"weft_{spec.name}", about, imports, [name for name, _ in types], body)
    aligned = tuple(i for i, (name, _) in enumerate(types) if name in ("Bounds", "Tables"))
    early = spec.chained and spec.blocks
    return Source(spec.name, text, types, aligned, 8 if spec.blocks else 4, 1, early=early)
