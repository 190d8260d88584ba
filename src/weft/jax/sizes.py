"""The sizes of a loop's tiles and chunks. They are functions of buckets, so that near masks have equal shapes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import product as cartesian
from math import prod
from operator import le

from weft.errors import InputError
from weft.jax.rows import AxisRows, TermRows, tiles_of
from weft.jax.structure import Axis, Loop, Structure, TileLoop, bucket

# Query positions of a tile, and from how many keys a row on.
FLAT_BOXES = ((256, 384), (128, 96), (64, 0))
GRID_BOXES = (32, 64, 128, 256)  # queries of a tile of a grid
CHUNK = 1024  # keys of the longest chunk
LONG_CHUNK = 512  # keys of a chunk where runs are of many lengths
TABLE_BOX, TABLE_CHUNK = 128, 256  # the most where tables of bounds cut runs, which may be of any length
LEAST = 16  # keys of the shortest chunk of one axis
STEP = 60_000  # scores that take as long as one step of a loop, of all heads together
HEADS = 8  # heads that this assumes


def sized(term: TermRows, like: Structure | None) -> TileLoop:
    """The loop of one term with its boxes and widths: as in `like` if that is given, else by the lengths of its rows.

    Capacities stay 0.
    """
    found = _sized(term)
    return found if like is None else _as_in(term, found, like)


def _sized(term: TermRows) -> TileLoop:
    boxes = _boxes(term.widest, TABLE_BOX if term.by_table else FLAT_BOXES[0][0])
    widths = [tiles_of(rows, box).widths for rows, box in zip(term.widest, boxes, strict=True)]
    if len(boxes) == 1:
        chosen = [_flat_width(widths[0].tolist(), term.widest[0].axis, term.by_table)]
    else:
        most = [bucket(int(x.max(initial=1))) for x in widths]
        most[0] = min(most[0], max(1, CHUNK // prod(most[1:])))
        chosen = [min(x, rows.axis.k_positions) for x, rows in zip(most, term.widest, strict=True)]
    return _with_sizes(term.loop, boxes, chosen)


def _with_sizes(loop: TileLoop, boxes: Iterable[int], widths: Iterable[int]) -> TileLoop:
    axes = zip(loop.axes, boxes, widths, strict=True)
    return replace(loop, axes=tuple(replace(axis, box=box, width=width) for axis, box, width in axes))


def _boxes(axes: tuple[AxisRows, ...], most_flat: int) -> tuple[int, ...]:
    positions = [rows.axis.q_positions for rows in axes]
    longest = [min(bucket(int(rows.count.max(initial=1))), most) for rows, most in zip(axes, positions, strict=True)]
    if len(axes) == 1:
        box = next(box for box, least in FLAT_BOXES if axes[0].width >= least)
        return (min(box, most_flat, bucket(longest[0], 8), positions[0]),)
    width = [bucket(round(rows.width)) for rows in axes]
    lanes = prod(max(1, rows.count.size) for rows in axes)
    sides = [[1 << i for i in range(9) if (1 << i) < 2 * most] for most in longest]
    largest = prod(side[-1] for side in sides)
    found = []
    for sizes in cartesian(*sides):
        if prod(sizes) in GRID_BOXES or prod(sizes) == largest < GRID_BOXES[0]:
            tiles = lanes * prod(-(-most // b) for most, b in zip(longest, sizes, strict=True))
            scores = prod(b * (b + w - 1) for b, w in zip(sizes, width, strict=True))
            found.append((tiles * (STEP + HEADS * scores), sizes))
    return tuple(min(b, most) for b, most in zip(min(found)[1], positions, strict=True))


def _flat_width(widths: list[int], axis: Axis, by_table: bool) -> int:
    """Runs of nearly one length take one chunk each; runs of many lengths, or very long ones, take several.

    by_table: widths are those of runs that tables will cut.
    """
    if not widths:
        return min(LEAST, axis.k_positions)
    most, mean = bucket(max(widths), LEAST), sum(widths) / len(widths)
    if by_table:
        most = min(most, TABLE_CHUNK)
    elif most > CHUNK or mean < most / 2:
        most = min(LONG_CHUNK, max(LEAST, 1 << (round(mean) - 1).bit_length()))
    return min(most, axis.k_positions)


def _as_in(term: TermRows, found: TileLoop, like: Structure) -> TileLoop:
    """The loop of `like` that is as `found`; else the narrowest that takes a tile in one chunk, else the widest."""
    known: list[Loop] = [loop for program in like.programs for loop in program.loops]
    same = [
        replace(loop, axes=tuple(replace(axis, tiles=0) for axis in loop.axes), again=False)
        for loop in known
        if isinstance(loop, TileLoop) and loop.unsized() == term.loop.unsized()
    ]
    if found in same:
        return found
    if not same:
        raise InputError(
            "plan(mask, ..., like=planned)",
            "the mask has a term that the planned one has no loop for",
            "leave like= out, or plan a mask of the same structure",
        )
    needed = [[_most(rows, axis) for rows, axis in zip(term.axes, one.axes, strict=True)] for one in same]
    room = [[axis.width for axis in one.axes] for one in same]
    fits = [all(map(le, keys[1:], there[1:])) for keys, there in zip(needed, room, strict=True)]
    if not any(fits):
        raise InputError(
            "plan(mask, ..., like=planned)",
            "a tile of the grid sees more keys than the planned mask has room for",
            "leave like= out, or give the larger plan as like=",
        )
    order = [
        (keys[0] > there[0], there[0] if keys[0] <= there[0] else -there[0], place)
        for place, (keys, there, fit) in enumerate(zip(needed, room, fits, strict=True))
        if fit
    ]
    return same[min(order)[2]]


def _most(rows: AxisRows, axis: Axis) -> int:
    return int(tiles_of(rows, axis.box).widths.max(initial=1))
