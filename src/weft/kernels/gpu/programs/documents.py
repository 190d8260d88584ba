"""The programs of documents whose lengths only the device knows: tables are made there, and kernels of tiles read them.

q, k and v are packed, (1, H, T, D); slots of_queries and of_keys have running sums, (documents + 1,) in int32. Queries
of no document have out 0 and lse -inf, keys of none have no gradients. No length of a document is known to the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from weft.kernels.gpu.compile.source import Source
from weft.kernels.gpu.documents import spec as documents
from weft.kernels.gpu.documents.spec import Places, TablesSpec, places_of
from weft.kernels.gpu.entry import module
from weft.kernels.gpu.layout import Layout, Options
from weft.kernels.gpu.program import Argument, Known, Launch, LaunchProgram, OnDevice, Pointer, Slot, Table
from weft.kernels.gpu.programs.backward import keys_program, queries_program
from weft.kernels.gpu.programs.forward import forward_program
from weft.kernels.gpu.programs.launches import Packed
from weft.kernels.gpu.tables.batches import Wave, Waves
from weft.kernels.gpu.tables.pack import Kind
from weft.planning.attention_plan import AttentionPlan
from weft.planning.problem import Problem
from weft.planning.tiling import Direction, Tiling

BLOCK = 64  # tiles of a program, see `documents.kernel`
IMPORTS = "kernel import Documents, Made, tables_of", "spec import TablesSpec"
SUMS = ("of_queries", "of_keys")
INTEGERS = ("documents", "my_length", "their_length", "tiles", "group", "items_at", "heads_at")
TYPES = (
    ("OfRows", "*i32"), ("OfCols", "*i32"), ("Bounds", "*i32"), *((name, "i32") for name in INTEGERS),
    ("Tables", "*i32"),
)  # fmt: skip


@dataclass(frozen=True)
class Documents:
    """So many documents under one pattern, and the tilings of each direction."""

    count: int
    pattern: documents.Known
    tilings: Mapping[Direction, Tiling]


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
    """As `forward_program`, with the running sums as inputs after all others. plan: of the whole problem, whose own
    tiles are not used.
    """
    made = tables_made("forward", plan.problem, asked)
    return _making(forward_program(plan, layout, options, made.packed), [made], asked)


def documents_backward_program(
    plan: AttentionPlan, layout: Layout, options: Options, asked: Documents
) -> LaunchProgram:  # fmt: skip
    """As `backward_program`, by two kernels and the same bits every time."""
    of_queries, of_keys = (tables_made(one, plan.problem, asked) for one in ("dq", "dkdv"))
    found = queries_program(plan, layout, options, of_queries.packed)
    keys = keys_program(plan, layout, options, False, of_keys.packed)
    both = found.then(keys, ("dq", "dk", "dv") + ("delta",) * options.with_delta)
    return _making(both, [of_queries, of_keys], asked)


def _making(program: LaunchProgram, made: list[Made], asked: Documents) -> LaunchProgram:
    """A program that makes tables before its first launch."""
    names = {f"{one.direction}_tables_0": one for one in made}
    slots = [replace(slot, role="workspace") if slot.name in names else slot for slot in program.slots]
    slots += [Slot.dense(name, "input", "int32", (asked.count + 1,)) for name in SUMS]
    bounds = {f"{one.direction}_bounds": one.bounds for one in made}
    slots += [table.slot(name) for name, table in bounds.items()]
    tables = {name: table for name, table in program.tables.items() if name not in names}
    first = next(at for at, step in enumerate(program.steps) if isinstance(step, Launch))
    steps = (*program.steps[:first], *(one.launch for one in made), *program.steps[first:])
    return LaunchProgram(f"documents_{program.name}", tuple(slots), steps, tables | bounds)


# ---- tables ----------------------------------------------------------------------------------------------------------
def tables_made(direction: Direction, problem: Problem, asked: Documents) -> Made:
    """The tables of one direction, in slot `{direction}_tables_0`, from bounds in `{direction}_bounds`."""
    tiling, of_keys = asked.tilings[direction], direction == "dkdv"
    mine, theirs = (problem.n, problem.m) if of_keys else (problem.m, problem.n)
    members, group = problem.kv_heads if of_keys else problem.q_heads, problem.group
    places = places_of(asked.count, mine, tiling.rows, members)
    wave = _wave(tiling, places, asked.pattern.are_lines(of_keys))
    table = Table(np.broadcast_to(np.int32(0), (places.size,)))  # whose words the device makes
    packed = Packed(Waves((wave,), covers=True), (table,), None)
    spec = TablesSpec(tiling.rows, tiling.cols, of_keys, asked.pattern.from_end)
    values = dict(zip(INTEGERS, (asked.count, mine, theirs, places.tiles, group, *places[3:]), strict=True))
    sums = reversed(SUMS) if of_keys else SUMS
    told: list[Argument] = [*map(OnDevice, sums), Pointer(f"{direction}_bounds"), *map(Known, values.values())]
    told.append(Pointer(f"{direction}_tables_0", writes=True))
    launch = Launch(spec, _source(spec), (-(-places.tiles // BLOCK), members, 1), tuple(told))
    return Made(packed, launch, Table(asked.pattern.bounds(of_keys)), direction)


def _wave(tiling: Tiling, places: Places, lines: bool) -> Wave:
    """One launch of a kernel that reads tables with a member for each tile of each head."""
    nothing = np.zeros(0, np.int32)
    return Wave(
        nothing, Kind(1, tiling, True, False, False), places.heads_at, places.members * places.tiles, 1, True,
        several=False, terms=1, more=False, place=None, merges=False, span=max(tiling.rows, tiling.cols), whole=False,
        lines=lines,
    )  # fmt: skip


@lru_cache(maxsize=64)
def _source(spec: TablesSpec) -> Source:
    names = tuple(name for name, _ in TYPES)
    about = f"{spec.name}\n\nWritten by weft; 4 warps."
    body = [
        f"C: tl.constexpr = {spec!r}",
        "every = Documents(OfRows, OfCols, documents, my_length, their_length)",
        "tables_of(C, every, Made(Tables, tiles, items_at, heads_at), Bounds, group)",
    ]
    imports = "".join(f"from weft.kernels.gpu.documents.{line}\n" for line in IMPORTS) + "\n"
    return Source(spec.name, module(f"weft_{spec.name}", about, imports, names, body), TYPES, (2, len(TYPES) - 1), 4, 1)
