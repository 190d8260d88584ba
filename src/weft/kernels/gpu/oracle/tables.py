"""Packed tables of tiles, read back as kernels read them: which rows an item has, and which columns it visits.

The side that stays is called rows, and the side that is walked columns. They are queries and keys in forward and dq,
keys and queries in dkdv. `weft.kernels.gpu.tables.pack` says how tables are packed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import product
from typing import NamedTuple

import numpy as np

from weft.kernels.gpu.oracle import bounds
from weft.kernels.gpu.oracle.bounds import narrow
from weft.kernels.gpu.oracle.laws import law
from weft.kernels.gpu.oracle.memory import Bools, Ints
from weft.kernels.gpu.tables.pack import HEAD, PART, Place, axis_words


class Form(NamedTuple):
    """What the code of a kernel says of its tables: see `weft.kernels.gpu.spec.KernelSpec`."""

    rank: int
    rows: int
    cols: int
    formula: bool = True
    lines: bool = False
    listed: bool = False
    several: bool = False
    more: bool = False
    terms: int = 1
    packed: bool = False
    paged: int = 0
    ordered: bool = False


class Owner(NamedTuple):
    """Whose tile it is: batch row, key/value head, (first) query head, number of query heads."""

    batch: int
    kv_head: int
    head: int
    heads: int


class Member(NamedTuple):
    """One head of a launch: its tables, how many items they have, and where parts and items are."""

    owner: Owner
    words: Ints
    items: int
    place: Place


@dataclass(frozen=True)
class Visit:
    """One tile of columns. cols: tokens that are read. live (rows, cols): pairs that are computed.

    within: pairs inside the bounds of a grid, others get a penalty, which NaN survives; None where there is none.
    masked: scores of other pairs are replaced.
    """

    cols: Ints
    live: Bools
    within: Bools | None = None
    masked: bool = True


@dataclass(frozen=True)
class Part:
    """The visits of one term.

    seen (rows,): rows whose bounds leave some column of it. wanted: those of them that no list leaves out.
    """

    seen: Bools
    wanted: Bools
    visits: tuple[Visit, ...]


@dataclass(frozen=True)
class Tile:
    """Rows of an item, tokens that exist, and the terms that it walks."""

    rows: Ints
    parts: tuple[Part, ...]


class Run(NamedTuple):
    """A run of columns along one axis: (first column, columns, tiles before the full ones, full tiles)."""

    first: int
    length: int
    left: int
    full: int


@dataclass(frozen=True)
class Strip:
    """A tile's columns along one axis: coordinates, mask (rows, coordinates), whether all rows see all of them."""

    at: Ints
    mask: Bools
    full: bool


def member_of(words: Ints, at: int) -> Member:
    """A member whose integers begin at `at`, of several launches that are packed."""
    head = [int(x) for x in words[at : at + HEAD]]
    return Member(Owner(*head[:4]), words[head[4] :], head[5], Place(*head[6:10]))


class Tables:
    """The tables of one launch."""

    def __init__(self, words: Ints, form: Form, place: Place) -> None:
        self.words, self.form, self.place = words, form, place

    def tile(self, item: int, lengths: tuple[int, int]) -> Tile:
        """One item. lengths: of the side of rows and of the side of columns."""
        return self._blocks(item, lengths) if self.form.rank == 0 else self._boxes(item)

    # -- the remainder
    def _blocks(self, item: int, lengths: tuple[int, int]) -> Tile:
        size = self.form.rows
        columns, places, bits, begin, end, top, below = (int(x) for x in self.words[:7])
        row, first, last = (int(x) for x in self.words[self.place.items_at + self.place.record * item :][:3])
        rows = row * size + np.arange(size)
        valid = rows < lengths[0]
        law(0 <= begin < end <= lengths[1] and 0 <= top < below <= lengths[0], "blocks reach beyond the sequence")
        seen = (rows >= top) & (rows < below)
        visits = []
        for block in range(first, last):
            cols = self.words[columns + block] * size + np.arange(size)
            mask = self._bits(bits, int(self.words[places + block]))[valid]
            law(not mask[:, cols < begin].any() and not mask[~seen[valid]].any(), "a pair beyond the seen ones is live")
            there = (cols >= begin) & (cols < end)
            visits.append(Visit(cols[there], mask[:, there]))
        return Tile(rows[valid], (Part(seen[valid], seen[valid], tuple(visits)),))

    def _bits(self, bits: int, place: int) -> Bools:
        """The live pairs of one block, all where it has no place."""
        size = self.form.rows
        if place < 0:
            return np.ones((size, size), np.bool_)
        words = self.words[bits + place * 128 :][:128].reshape(size, 2)
        found: Bools = (words[:, np.arange(size) // 32] >> (np.arange(size) % 32)) & 1 != 0
        return found

    # -- boxes
    def _boxes(self, item: int) -> Tile:
        at = self._my_rows(item)
        rows = self.words[0] + row_major(at, self.words[4::3][: self.form.rank])
        if self.form.ordered:
            rows = self._in_order(int(self.words[1]), at[0])
        return Tile(rows, tuple(self._part(part, item, at, rows) for part in self._parts()))

    def _parts(self) -> range:
        """The terms that are walked one after the other: all, or so many as the kernel's code names."""
        form, parts = self.form, self.place.parts
        if form.several:
            return range(parts)
        law(form.packed or form.more or parts == form.terms, f"a kernel of {form.terms} terms has {parts}")
        return range(min(form.terms, parts))

    def _my_rows(self, item: int) -> list[Ints]:
        """Coordinates of the rows on every axis, (rows,) each."""
        rank, mine = self.form.rank, self.place.items_at + item * self.place.record
        rest = np.arange(self.form.rows)
        at, valid = [rest] * rank, rest >= 0
        for a in reversed(range(rank)):
            box, step = (int(x) for x in self.words[2 + 3 * a : 4 + 3 * a])
            here = rest & ((1 << box) - 1) if a else rest
            rest = rest >> box if a else rest
            at[a] = narrow(self.words[mine + 2 * a] + step * here)
            valid = valid & (here < self.words[mine + 2 * a + 1])
        law(valid.any(), "an item has no row")
        at = [one[valid] for one in at]
        if self.form.listed and rank == 1 and self.words[1]:
            at = [self.words[self.words[1] + at[0]]]
        return at

    def _part(self, part: int, item: int, at: list[Ints], rows: Ints) -> Part:
        rank = self.form.rank
        here = self.place.parts_at + part * (PART + axis_words(rank) * rank)
        origin, keys_at, rows_out, cols_out = (int(x) for x in self.words[here : here + PART])
        axes, seen = [], np.ones(rows.shape, np.bool_)
        for a in range(rank):
            low, high = self._bounds(self._axis(here, a), at[a], item)
            run = self._run(item, part, a)
            seen = seen & (self._position(here, a, low, run.first) < self._position(here, a, high, run.first))
            axes.append(self._strips(here, a, run, (low, high), keys_at))
        lengths = [int(self.words[self._axis(here, a) + 2]) for a in range(rank)]
        out = rows, rows_out, cols_out
        visits = [self._visit(strips, (origin, keys_at), lengths, out) for strips in product(*axes)]
        if self.form.more and self.place.parts > 1:
            visits += self._more(here, item, rows)
        return Part(seen, seen & ~self._is_out(rows_out, rows), tuple(visits))

    def _in_order(self, order: int, places: Ints) -> Ints:
        """The tokens at places of an order."""
        law(order > 0, "tokens in another order have no list")
        tokens: Ints = self.words[order + places]
        law(np.unique(tokens).size == tokens.size, "an order has a token twice")
        return tokens

    def _axis(self, here: int, a: int) -> int:
        """Where the integers of an axis of a part begin."""
        return here + PART + axis_words(self.form.rank) * a

    def _run(self, item: int, part: int, a: int) -> Run:
        rank = self.form.rank
        at = self.place.items_at + item * self.place.record + 2 * rank + 4 * (rank * part + a)
        return Run(*(int(x) for x in self.words[at : at + 4]))

    def _visit(
        self, strips: tuple[Strip, ...], begin: tuple[int, int], lengths: list[int], out: tuple[Ints, int, int]
    ) -> Visit:  # fmt: skip
        """A box of columns. begin: the first column, and the place of the list of pages or of columns. out: rows,
        places of the bits of rows and of columns that lists leave out.
        """
        (origin, list_at), (rows, rows_out, cols_out) = begin, out
        cols = origin + grid([strip.at for strip in strips], lengths)
        if self.form.paged:
            page = self.form.paged
            cols = self.words[list_at + cols // page] + cols % page
        if self.form.ordered:
            cols = self._in_order(list_at, cols)
        within = np.ones((rows.size, 1), np.bool_)
        for strip in strips:
            within = (within[:, :, None] & strip.mask[:, None, :]).reshape(rows.size, -1)
        on_grid = self.form.rank > 1
        live = within
        if self.form.listed:
            live = within & ~self._is_out(rows_out, rows)[:, None] & ~self._is_out(cols_out, cols)
        full = not on_grid and strips[0].full
        law(not full or live.all(), "a tile that is said to be full is not")
        return Visit(cols, live, within if on_grid else None, masked=self.form.listed if on_grid else not full)

    def _more(self, here: int, item: int, rows: Ints) -> Iterator[Visit]:
        """Full tiles of other terms, with the steps of the first."""
        first, tiles = self._run(item, 1, 0).first, self._run(item, 1, 0).full
        step, second = int(self.words[here + PART]), here + PART + axis_words(1)
        for j in range(tiles):
            cols = self.words[second] + first + step * (j * self.form.cols + np.arange(self.form.cols))
            yield Visit(cols, np.ones((rows.size, cols.size), np.bool_), masked=False)

    def _strips(self, here: int, a: int, run: Run, ends: tuple[Ints, Ints], keys_at: int) -> list[Strip]:
        """The tiles of one axis. ends: (low, high) of every row, in coordinates."""
        at, listed = self._axis(here, a), self.form.listed and self.form.rank == 1
        step, box = int(self.words[at]), 1 << int(self.words[at + 1])
        law(self.form.rank > 1 or box == self.form.cols, f"tables have tiles of {box} columns")
        low, high = ends
        if not listed:
            low, high = (self._position(here, a, bound, run.first) for bound in ends)
        found, c = [], np.arange(box)
        for j in range(-(-run.length // box)):
            inside, place = c < run.length - j * box, narrow(run.first + step * (j * box + c))
            if listed:
                place = self.words[keys_at + place[inside]] if keys_at else place[inside]
                mask = (place >= low[:, None]) & (place < high[:, None])
            else:
                mask = (c >= low[:, None] - j * box) & (c < high[:, None] - j * box)
                law(not mask[:, ~inside].any(), "a column beyond the run is live")
                self._check_sides(run, j, (low - j * box, high - j * box), mask)
                place, mask = place[inside], mask[:, inside]
            full = self.form.rank == 1 and run.left <= j < run.left + run.full
            law(inside.all() or not full, "a tile that ends early is said to be full")
            found.append(Strip(place, mask, full))
        return found

    def _check_sides(self, run: Run, j: int, ends: tuple[Ints, Ints], mask: Bools) -> None:
        """Beside full tiles one side alone cuts a tile, and some kernels look at that side alone."""
        if self.form.rank > 1 or not run.full:
            return
        c = np.arange(mask.shape[1])
        one = c >= ends[0][:, None] if j < run.left else c < ends[1][:, None]
        law(run.left <= j < run.left + run.full or np.array_equal(one, mask), "two sides cut a tile beside full ones")

    def _bounds(self, here: int, i: Ints, item: int) -> tuple[Ints, Ints]:
        """(low, high) of every row on an axis: live columns are low <= k < high, in coordinates."""
        if self.form.rank > 1:
            found = self.words[self.words[here + 3] + 2 * i[:, None] + np.arange(2)]
            return found[:, 0], found[:, 1]
        if not self.form.formula:
            return bounds.listed(self.words, here, i, item)
        return (bounds.lines if self.form.lines else bounds.stairs)(self.words, here, i)

    def _position(self, here: int, a: int, bound: Ints, first: int) -> Ints:
        """A bound as a place in a run; where tokens are listed it stays a coordinate."""
        if self.form.listed and self.form.rank == 1:
            return bound
        return bounds.positions(self.words, self._axis(here, a), bound, first)

    def _is_out(self, place: int, tokens: Ints) -> Bools:
        """Which tokens a list leaves out."""
        if not (self.form.listed and place):
            return np.zeros(tokens.shape, np.bool_)
        word = np.minimum(tokens // 32, self.words[place - 1])
        found: Bools = (self.words[place + word] >> (tokens % 32)) & 1 != 0
        return found


def row_major(at: list[Ints], lengths: Ints) -> Ints:
    """Tokens of points given by one array of coordinates for each axis."""
    return narrow(reduce(lambda token, more: token * more[1] + more[0], zip(at[1:], lengths[1:], strict=True), at[0]))


def grid(at: list[Ints], lengths: list[int]) -> Ints:
    """Tokens of all points of a box given by its coordinates along each axis."""
    token = np.zeros(1, np.int64)
    for coordinate, length in zip(at, lengths, strict=True):
        token = (token[:, None] * length + coordinate).reshape(-1)
    return token
