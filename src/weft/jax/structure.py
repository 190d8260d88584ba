"""What is static about a planned mask: the shapes of its loops, without any number that a window or a document moves.

A mask becomes a few loops over tiles of queries. A loop's shapes are compiled; which tiles there are, where their keys
begin and which pairs are live are int32 tables. Sizes are rounded up to buckets, so masks that differ a little share
their shapes. Everything here is hashable and compared by value: it is the auxiliary data of a pytree.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TypeAlias

BLOCKS_AT_ONCE = 8  # blocks of the remainder that one chunk of keys holds


def bucket(x: int, least: int = 1) -> int:
    """The smallest size not below x: four steps to each power of two (1 to 8, 10, 12, 14, 16, 20, ...)."""
    x = max(x, least, 1)
    step = 1 << max(0, (x - 1).bit_length() - 3)
    return -(-x // step) * step


@dataclass(frozen=True)
class Axis:
    """One axis of a tile loop. Token `position * step + phase` is at (position, phase), for queries and for keys.

    rows, keys: tokens of the axis (places, where a list says which tokens). box: query positions of a tile. width: key
    positions of a chunk. tiles: the capacity of the table of tiles.
    """

    rows: int
    keys: int
    q_step: int
    k_step: int
    box: int = 0
    width: int = 0
    tiles: int = 0

    @property
    def q_positions(self) -> int:
        """Positions of one phase of queries."""
        return -(-self.rows // self.q_step)

    @property
    def k_positions(self) -> int:
        """Positions of one phase of keys."""
        return -(-self.keys // self.k_step)


@dataclass(frozen=True)
class TileLoop:
    """A loop over tiles of queries; each visits a run of chunks of keys.

    q_origin, k_origin: the first token of the grid on each side. q_listed, k_listed: a table says which tokens.
    q_cut, k_cut: a table says which tokens of the grid take part. again: more than one tile may see keys for a query.
    """

    q_origin: int
    k_origin: int
    axes: tuple[Axis, ...]
    q_listed: bool = False
    k_listed: bool = False
    q_cut: bool = False
    k_cut: bool = False
    again: bool = False

    @property
    def scores(self) -> int:
        """Scores of one chunk of one head."""
        return prod(axis.box * axis.width for axis in self.axes)

    @property
    def joins(self) -> bool:
        """Whether tiles of another loop of this shape may follow its own."""
        return len(self.axes) == 1 and not (self.q_listed or self.k_listed or self.k_cut)

    def unsized(self) -> TileLoop:
        """The loop before its sizes are chosen."""
        axes = (replace(axis, box=0, width=0, tiles=0) for axis in self.axes)
        if self.q_listed or self.k_listed:
            axes = (replace(a, rows=0 if self.q_listed else a.rows, keys=0 if self.k_listed else a.keys) for a in axes)
        return replace(self, axes=tuple(axes), again=False)


@dataclass(frozen=True)
class BlockLoop:
    """A loop over rows of 64 x 64 blocks, whose pairs are told bit by bit: the capacities of its three tables."""

    rows: int = 0
    blocks: int = 0
    bits: int = 0

    @property
    def scores(self) -> int:
        """Scores of one chunk of one head."""
        return 64 * 64 * BLOCKS_AT_ONCE

    def unsized(self) -> BlockLoop:
        """The loop before its capacities are chosen."""
        return BlockLoop()


Loop: TypeAlias = TileLoop | BlockLoop


@dataclass(frozen=True)
class Program:
    """The loops of heads whose masks have equal shapes. variants: masks; places: capacity of the table of heads."""

    loops: tuple[Loop, ...]
    variants: int = 1
    places: int = 1

    @property
    def scores(self) -> int:
        """The most scores of one chunk of one head."""
        return max((loop.scores for loop in self.loops), default=1)

    @property
    def once(self) -> bool:
        """Whether one tile alone computes a query, so that its output is final."""
        return len(self.loops) == 1 and not (isinstance(self.loops[0], TileLoop) and self.loops[0].again)


@dataclass(frozen=True)
class Structure:
    """All that is static about a planned mask of m queries and n keys.

    batch, heads, kv_heads: how many the mask tells apart, None where it tells none apart. unit: batch rows, key/value
    heads and heads of a group that one place of a program covers; None: all. shift: what alignment adds to query
    indices, None where it is not declared. grid: the mask has tokens of several coordinates.
    """

    m: int
    n: int
    batch: int | None
    heads: int | None
    kv_heads: int | None
    unit: tuple[int | None, int | None, int | None]
    programs: tuple[Program, ...]
    shift: int | None = 0
    grid: bool = False
