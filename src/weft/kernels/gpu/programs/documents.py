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
from weft.kernels.gpu.documents import spec as documents
from weft.kernels.gpu.documents.spec import Places, TablesSpec, places_of
from weft.kernels.gpu.entry import module
from weft.kernels.gpu.layout import Layout, Options
from weft.kernels.gpu.program import (
    Argument,
    Known,
    Launch,
    LaunchProgram,
    OnDevice,
    Pointer,
    Role,
    Slot,
    Strides,
    Table,
)
from weft.kernels.gpu.programs.backward import keys_program, queries_program
from weft.kernels.gpu.programs.forward import forward_program
from weft.kernels.gpu.programs.launches import Packed
from weft.kernels.gpu.tables.batches import Wave, Waves
from weft.kernels.gpu.tables.pack import Kind
from weft.planning.attention_plan import AttentionPlan
from weft.planning.problem import Problem
from weft.planning.tiling import Direction, Tiling

BLOCK = 64  # tiles of a program, see `documents.kernel`
IMPORTS = "kernel import Documents, Made, Paged, tables_of", "spec import TablesSpec"
SUMS = ("of_queries", "of_keys")
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
    """So many documents under one pattern, and the tilings of each direction. paged: where keys lie in pages. ready:
    programs are given the tables that `documents_tables_program` makes, in place of the running sums.
    """

    count: int
    pattern: documents.Known
    tilings: Mapping[Direction, Tiling]
    paged: PagedKeys | None = None
    ready: bool = False


@dataclass(frozen=True)
class Made:
    """Tables of one direction, and the launch that makes them."""

    packed: Packed
    launch: Launch
    bounds: Table
    direction: Direction


# ---- programs --------------------------------------------------------------------------------------------------------
def documents_forward_program(
    plan: AttentionPlan, layout: Layout, options: Options, asked: Documents
) -> LaunchProgram:  # fmt: skip
    """As `forward_program`, with the running sums, and the block table if there is one, as inputs after all others.

    plan: of the whole problem, whose own tiles are not used; of keys in pages n is the room of a document.
    """
    made = tables_made("forward", plan.problem, asked)
    return _making(forward_program(plan, layout, options, made.packed), [made], asked)


def documents_backward_program(
    plan: AttentionPlan, layout: Layout, options: Options, asked: Documents
) -> LaunchProgram:  # fmt: skip
    """As `backward_program`, by two kernels and the same bits every time; not of keys in pages."""
    of_queries, of_keys = (tables_made(one, plan.problem, asked) for one in ("dq", "dkdv"))
    found = queries_program(plan, layout, options, of_queries.packed)
    keys = keys_program(plan, layout, options, False, of_keys.packed)
    both = found.then(keys, ("dq", "dk", "dv") + ("delta",) * options.with_delta)
    return _making(both, [of_queries, of_keys], asked)


def documents_tables_program(problem: Problem, asked: Documents, directions: tuple[Direction, ...]) -> LaunchProgram:
    """The tables of these directions, of slots of_queries and of_keys: for programs of documents that are `ready`."""
    made = [tables_made(one, problem, asked) for one in directions]
    slots = _sums(asked)
    for one in made:
        (table,) = one.packed.tables
        slots.append(Slot.dense(f"{one.direction}_tables_0", "output", "int32", table.words.shape))
    bounds = {f"{one.direction}_bounds": one.bounds for one in made}
    slots += [table.slot(name) for name, table in bounds.items()]
    return LaunchProgram("documents_tables", tuple(slots), tuple(one.launch for one in made), bounds)


def _sums(asked: Documents) -> list[Slot]:
    return [Slot.dense(name, "input", "int32", (asked.count + 1,)) for name in SUMS]


def _making(program: LaunchProgram, made: list[Made], asked: Documents) -> LaunchProgram:
    """A program that makes tables before its first launch, or is given them."""
    names = {f"{one.direction}_tables_0": one for one in made}
    role: Role = "input" if asked.ready else "workspace"
    slots = [replace(slot, role=role) if slot.name in names else slot for slot in program.slots]
    if asked.ready:
        tables = {name: table for name, table in program.tables.items() if name not in names}
        return LaunchProgram(f"documents_{program.name}", tuple(slots), program.steps, tables)
    slots += _sums(asked)
    if asked.paged is not None:
        slots = [_paged(slot, asked.paged) for slot in slots]
        slots.append(Slot("block_table", "input", "int32", (asked.count, asked.paged.width), (asked.paged.row, 1)))
    bounds = {f"{one.direction}_bounds": one.bounds for one in made}
    slots += [table.slot(name) for name, table in bounds.items()]
    tables = {name: table for name, table in program.tables.items() if name not in names}
    first = next(at for at, step in enumerate(program.steps) if isinstance(step, Launch))
    steps = (*program.steps[:first], *(one.launch for one in made), *program.steps[first:])
    return LaunchProgram(f"documents_{program.name}", tuple(slots), steps, tables | bounds)


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
    told: list[Argument] = [*map(OnDevice, sums), Pointer(f"{direction}_bounds")]
    told += [Known(x) for x in (asked.count, mine, theirs, places.tiles, problem.group, places.items_at)]
    told.append(Known(places.heads_at))
    if paged is not None:
        told.append(Pointer("block_table"))
        told += [Known(x) for x in (paged.row, paged.width, paged.pages, paged.step, paged.room, places.pages_at)]
    told.append(Pointer(f"{direction}_tables_0", writes=True))
    launch = Launch(spec, _source(spec), (-(-places.tiles // BLOCK), members, 1), tuple(told))
    return Made(packed, launch, Table(asked.pattern.bounds(of_keys)), direction)


def _wave(tiling: Tiling, places: Places, members: int, lines: bool) -> Wave:
    """One launch of a kernel that reads tables with a member for each tile of each head."""
    nothing = np.zeros(0, np.int32)
    return Wave(
        nothing, Kind(1, tiling, True, False, False), places.heads_at, members * places.tiles, 1, True,
        several=False, terms=1, more=False, place=None, merges=False, span=max(tiling.rows, tiling.cols), whole=False,
        lines=lines,
    )  # fmt: skip


def _types(spec: TablesSpec) -> Iterator[tuple[str, str]]:
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
    paged = f"Paged(BlockTable, {', '.join(OF_PAGES)})" if spec.paged else "()"
    body = [
        f"C: tl.constexpr = {spec!r}",
        "every = Documents(OfRows, OfCols, documents, my_length, their_length)",
        f"paged = {paged}",
        "tables_of(C, every, Made(Tables, tiles, items_at, heads_at), Bounds, group, paged)",
    ]
    imports = "".join(f"from weft.kernels.gpu.documents.{line}\n" for line in IMPORTS) + "\n"
    text = module(f"weft_{spec.name}", about, imports, [name for name, _ in types], body)
    return Source(spec.name, text, types, (2, len(types) - 1), 4, 1)
