"""Acsr -> the loops that compute it and their tables; heads with equal loops become one program. numpy only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product as cartesian
from math import prod
from typing import Any, TypeAlias

import numpy as np

from weft.acsr.format import BLOCK, Acsr, Remainder
from weft.errors import InputError
from weft.jax.rows import ABSENT, Tables, TermRows, rows_of, tiles_of
from weft.jax.sizes import sized
from weft.jax.structure import BLOCKS_AT_ONCE, BlockLoop, Loop, Program, Structure, TileLoop, bucket
from weft.planning.heads import Heads

Unit: TypeAlias = tuple[int | None, int | None, int | None]
LISTS = ("queries", "keys")  # tables of listed tokens
FULL = 255  # a byte of a full block


@dataclass(frozen=True, eq=False)
class Part:
    """A loop, and its tables of one mask, before they are padded. room: tiles of each axis that its mask may have."""

    loop: Loop
    tables: Tables
    room: tuple[int, ...] = ()


def parts_of(acsr: Acsr, like: Structure | None) -> tuple[Part, ...]:
    """The loops of one mask, in a fixed order; their capacities are still 0. Terms of one shape share a loop."""
    found: dict[Loop, list[Part]] = {}
    apart: list[Part] = []
    for term in acsr.terms:
        part = _of_term(rows_of(term), like)
        if isinstance(part.loop, TileLoop) and part.tables["counts"].all():
            (found.setdefault(part.loop, []) if part.loop.joins else apart).append(part)
    apart += [_joined(parts, like) for parts in found.values()]
    if len(acsr.remainder):
        apart.append(Part(BlockLoop(), _of_blocks(acsr.remainder)))
    return tuple(sorted(apart, key=lambda part: repr(part.loop)))


def _of_term(term: TermRows, like: Structure | None) -> Part:
    loop = sized(term, like)
    tables = dict(term.tokens)
    counts, room = [], []
    for index, axis in enumerate(loop.axes):
        tiles, widest = (tiles_of(replace(rows[index], axis=axis), axis.box) for rows in (term.axes, term.widest))
        tables[f"tiles{index}"] = tiles.places.astype(np.int32)
        tables[f"bounds{index}"] = tiles.bounds.astype(np.int32)
        counts.append(len(tiles.places))
        room.append(len(widest.places))
    return Part(loop, {"counts": np.array(counts, np.int32), **tables}, tuple(room))


def _joined(parts: list[Part], like: Structure | None) -> Part:
    """Terms of one shape as one loop."""
    (loop, *_), first = (part.loop for part in parts), parts[0]
    known = [] if like is None else [_without_capacity(one) for program in like.programs for one in program.loops]
    assert isinstance(loop, TileLoop)
    if len(parts) > 1 or (like is not None and loop not in known):
        loop = replace(loop, again=True)
    names = [name for name in first.tables if name != "counts"]
    tables: Tables = {name: np.concatenate([part.tables[name] for part in parts]) for name in names}
    tables["counts"] = np.asarray(sum(part.tables["counts"] for part in parts), np.int32)
    return Part(loop, tables, tuple(map(sum, zip(*(part.room for part in parts), strict=True))))


def _of_blocks(remainder: Remainder) -> Tables:
    """rows (rows, 3): row of blocks, its first block, how many; blocks (blocks, 2): column, place in bits.

    bits (places, BLOCK, BLOCK / 8), of which the first is that of full blocks.
    """
    first = np.flatnonzero(np.append(True, remainder.rows[1:] != remainder.rows[:-1]))
    rows = np.stack([remainder.rows[first], first, np.diff(first, append=len(remainder))], axis=1)
    blocks = np.stack([remainder.cols, remainder.bit_index + 1], axis=1)
    bits = np.concatenate([np.full((1, BLOCK, BLOCK // 8), FULL, np.uint8), remainder.bits])
    counts = np.array([len(rows)], np.int32)
    return {"counts": counts, "rows": rows.astype(np.int32), "blocks": blocks.astype(np.int32), "bits": bits}


# ---- programs --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class Mask:
    """One distinct mask: its loops, and the heads that have it."""

    parts: tuple[Part, ...]
    heads: tuple[Heads, ...]

    @property
    def loops(self) -> tuple[Loop, ...]:
        """Its loops without capacities."""
        return tuple(part.loop for part in self.parts)


def programs_of(
    masks: Sequence[Mask], unit: Unit, like: Structure | None
) -> tuple[tuple[Program, ...], tuple[dict[str, Any], ...]]:
    """The programs of some masks, and the tables of each: `places` (places, 4), `count` (1,), `loops`, one for each.

    A place is (variant, batch row, key/value head, head of the group), of which it covers `unit`; None: all.
    """
    groups: dict[tuple[Loop, ...], list[Mask]] = {}
    if like is not None:
        groups = {tuple(map(_without_capacity, one.loops)): [] for one in like.programs}
    for mask in masks:
        groups.setdefault(mask.loops if like is None else _host(mask, list(groups)), []).append(mask)
    found = []
    for index, (loops, members) in enumerate(groups.items()):
        places = _places(members, unit)
        wanted = None if like is None else like.programs[index]
        program = _program(loops, members, len(places)) if wanted is None else wanted
        found.append((program, _stacked(program, loops, members, places)))
    return tuple(program for program, _ in found), tuple(tables for _, tables in found)


def _without_capacity(loop: Loop) -> Loop:
    if isinstance(loop, BlockLoop):
        return BlockLoop()
    return replace(loop, axes=tuple(replace(axis, tiles=0) for axis in loop.axes))


def _host(mask: Mask, known: list[tuple[Loop, ...]]) -> tuple[Loop, ...]:
    """The program with the loops of the mask; else the first that has a loop for every one of them."""
    if mask.loops in known:
        return mask.loops
    for loops in known:
        if all(loops.count(loop) >= mask.loops.count(loop) for loop in mask.loops):
            return loops
    raise _unlike("the mask has loops that the planned one has not")


def _unlike(wrong: str) -> InputError:
    return InputError(
        "plan(mask, ..., like=planned)", wrong, "leave like= out, or plan a mask of the same structure and bucket"
    )


def _places(members: Sequence[Mask], unit: Unit) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    for variant, mask in enumerate(members):
        for heads in mask.heads:
            spans = zip((heads.batch, heads.kv, heads.group), unit, strict=True)
            starts = [range(first, last, step) if step else range(1) for (first, last), step in spans]
            found += [(variant, *start) for start in cartesian(*starts)]
    return found


def _program(loops: tuple[Loop, ...], members: Sequence[Mask], places: int) -> Program:
    """The program with the smallest capacities in which its masks have room."""
    sized: list[Loop] = []
    for index, loop in enumerate(loops):
        tables = [mask.parts[index].tables for mask in members]
        if isinstance(loop, BlockLoop):
            rows, blocks, bits = (bucket(max(len(t[name]) for t in tables)) for name in ("rows", "blocks", "bits"))
            sized.append(BlockLoop(rows, blocks + BLOCKS_AT_ONCE, bits))
            continue
        rooms = [mask.parts[index].room for mask in members]
        most = [bucket(max(room)) for room in zip(*rooms, strict=True)]
        axes = tuple(replace(axis, tiles=tiles) for axis, tiles in zip(loop.axes, most, strict=True))
        sized.append(replace(loop, axes=axes))
    return Program(tuple(sized), bucket(len(members)), bucket(places))


def _stacked(
    program: Program, bare: tuple[Loop, ...], members: Sequence[Mask], places: list[tuple[int, ...]]
) -> dict[str, Any]:
    """The tables of a program, padded to its capacities; bare: its loops without them."""
    if len(members) > program.variants or len(places) > program.places:
        raise _unlike("more heads differ than the planned mask has room for")
    by_mask = [_assigned(mask, bare) for mask in members]
    loops = []
    for index, loop in enumerate(program.loops):
        shapes = shapes_of(loop)
        stack: dict[str, Any] = {
            name: np.full((program.variants, *shape), ABSENT if name in LISTS else 0, kind)
            for name, (shape, kind) in shapes.items()
        }
        for variant, parts in enumerate(by_mask):
            for name, table in (parts[index].tables if index in parts else {}).items():
                if len(table) > stack[name].shape[1]:
                    raise _unlike(f"a table of {len(table)} entries has room for {stack[name].shape[1]}")
                stack[name][variant, : len(table)] = table
        loops.append(stack)
    table = np.zeros((program.places, 4), np.int32)
    table[: len(places)] = np.array(places, np.int32).reshape(-1, 4)
    return {"places": table, "count": np.array([len(places)], np.int32), "loops": tuple(loops)}


def _assigned(mask: Mask, bare: tuple[Loop, ...]) -> dict[int, Part]:
    """The place of each of a mask's parts among the loops of its program."""
    found: dict[int, Part] = {}
    for part in mask.parts:
        index = next(i for i, loop in enumerate(bare) if loop == part.loop and i not in found)
        found[index] = part
    return found


def shapes_of(loop: Loop) -> dict[str, tuple[tuple[int, ...], type]]:
    """The shape and type of every table of one variant of a loop."""
    if isinstance(loop, BlockLoop):
        return {
            "counts": ((1,), np.int32),
            "rows": ((loop.rows, 3), np.int32),
            "blocks": ((loop.blocks, 2), np.int32),
            "bits": ((loop.bits, BLOCK, BLOCK // 8), np.uint8),
        }
    found: dict[str, tuple[tuple[int, ...], type]] = {"counts": ((len(loop.axes),), np.int32)}
    for index, axis in enumerate(loop.axes):
        found[f"tiles{index}"] = ((axis.tiles, 5), np.int32)
        found[f"bounds{index}"] = ((axis.tiles, axis.box, 2), np.int32)
    sizes = [prod(getattr(axis, name) for axis in loop.axes) for name in ("rows", "keys")]
    for name, there, size, kind in (
        ("queries", loop.q_listed, sizes[0], np.int32),
        ("keys", loop.k_listed, sizes[1], np.int32),
        ("queries_live", loop.q_cut, sizes[0], np.bool_),
        ("keys_live", loop.k_cut, sizes[1], np.bool_),
    ):
        if there:
            found[name] = ((size,), kind)
    return found
