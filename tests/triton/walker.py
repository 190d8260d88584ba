"""The tables of a wave read back in numpy, just as a kernel reads them: what it visits, masks and writes."""

from dataclasses import dataclass
from itertools import product

import numpy as np

from weft.kernels.triton.device import BOUND
from weft.kernels.triton.tables import AXIS, HEAD, PART, axis_words


@dataclass
class Visit:
    """One box of columns of one tile of rows: tokens, and mask (rows, cols), True where a pair is computed."""

    rows: np.ndarray
    cols: np.ndarray
    mask: np.ndarray


@dataclass
class Tile:
    """One tile of one head. owner: batch row, key/value head, (first) query head, number of query heads."""

    owner: tuple
    rows: np.ndarray
    visits: list


def walk_wave(wave, lengths):
    """Every tile of every member of a wave. lengths: of the side of rows and of the side of columns."""
    for member in range(wave.members):
        owner, base, items, place = member_of(wave, member)
        tables = Tables(wave.words[base:], wave.kind, place, wave.lines)
        for item in range(items):
            visit = tables.blocks if wave.kind.rank == 0 else tables.boxes
            yield Tile(owner, *visit(item, lengths))


def member_of(wave, member):
    """(owner, place of the tables, items, (record, parts, parts_at, items_at)) of one member."""
    at = wave.heads_at + HEAD * member
    head = [int(x) for x in wave.words[at : at + HEAD]]
    if wave.place is None:
        return tuple(head[:4]), head[4], head[5], tuple(head[6:10])
    here = wave.place.record, wave.place.parts, wave.place.parts_at, wave.place.items_at
    return tuple(head[:4]), 0, wave.items, here  # what a kernel is told instead of reading it


def narrow(x):
    """x, which a kernel keeps in 32 bits."""
    assert (np.abs(x) < 1 << 31).all(), "beyond 32 bits"
    return x


def towards_zero(x, by):
    return np.sign(x) * (np.abs(x) // by)


class Tables:
    """The tables of one launch. lines: as of its wave."""

    def __init__(self, words, kind, place, lines):
        self.words, self.kind, self.lines = words.astype(np.int64), kind, lines
        self.record, self.parts, self.parts_at, self.items_at = place

    def blocks(self, item, lengths):
        """(rows, visits) of one row of blocks of the remainder."""
        size = self.kind.tiling.rows
        columns, places, bits, begin, end, top, below = (int(x) for x in self.words[:7])
        row, first, last = (int(x) for x in self.words[self.items_at + 3 * item :][:3])
        rows, visits = row * size + np.arange(size), []
        valid = rows < lengths[0]
        assert 0 <= begin < end <= lengths[1] and 0 <= top < below <= lengths[0]
        for block in range(first, last):
            cols = self.words[columns + block] * size + np.arange(size)
            seen = (cols >= begin) & (cols < end)
            place, mask = int(self.words[places + block]), np.ones((size, size), bool)
            if place >= 0:
                found = self.words[bits + place * 128 :][:128].reshape(size, 2)
                mask = (found[:, np.arange(size) // 32] >> (np.arange(size) % 32)) & 1 != 0
            assert not mask[valid][:, cols < begin].any() and not mask[valid & ((rows < top) | (rows >= below))].any()
            visits.append(Visit(rows[valid], cols[seen], mask[valid][:, seen]))
        return rows[valid], visits

    def boxes(self, item, lengths):
        """(rows, visits) of one box of rows."""
        at, valid = self.my_rows(item)
        rows = self.words[0] + row_major(at, self.words[4::3][: self.kind.rank])
        visits = [visit for part in range(self.parts) for visit in self.part(part, item, (at, rows, valid))]
        return rows[valid], visits

    def my_rows(self, item):
        """Coordinates on every axis, one (rows,) each, and which exist."""
        mine, rest = self.items_at + item * self.record, np.arange(self.kind.tiling.rows)
        at, valid = [None] * self.kind.rank, rest >= 0
        for a in reversed(range(self.kind.rank)):
            box, step = self.words[2 + 3 * a], self.words[3 + 3 * a]
            here = rest & ((1 << box) - 1) if a else rest
            rest = rest >> box if a else rest
            at[a] = narrow(self.words[mine + 2 * a] + step * here)
            valid = valid & (here < self.words[mine + 2 * a + 1])
        if self.kind.listed and self.words[1]:
            at = [self.words[self.words[1] + np.where(valid, at[0], 0)]]
        return at, valid

    def part(self, part, item, mine):
        """The visits of one part."""
        at, rows, valid = mine
        rank, words = self.kind.rank, axis_words(self.kind.rank)
        here = self.parts_at + part * (PART + words * rank)
        origin, keys_at, rows_out, cols_out = (int(x) for x in self.words[here : here + PART])
        run = self.items_at + item * self.record + 2 * rank + part * 4 * rank
        axes = [self.axis(here + PART + words * a, run + 4 * a, (at[a], item, valid), keys_at) for a in range(rank)]
        lengths = [int(self.words[here + PART + words * a + 2]) for a in range(rank)]
        live = valid & ~self.is_out(rows_out, rows)
        for boxes in product(*axes):
            cols, mask = origin + row_major_grid([x for x, _, _ in boxes], lengths), np.ones((rows.size, 1), bool)
            for _, axis_mask, _ in boxes:
                mask = (mask[:, :, None] & axis_mask[:, None, :]).reshape(rows.size, -1)
            if all(full for _, _, full in boxes):
                mask = np.ones_like(mask)
            else:
                mask = mask & live[:, None] & ~self.is_out(cols_out, cols)
            yield Visit(rows[valid], cols, mask[valid])

    def axis(self, here, run, mine, keys_at):
        """(coordinates, mask (rows, coordinates), whether it is said to be full) of every box of one axis."""
        first, count, left, full = (int(x) for x in self.words[run : run + 4])
        step, box = int(self.words[here]), 1 << int(self.words[here + 1])
        i, item, valid = mine
        low, high = self.bounds(here, i, item, valid)
        found = []
        for j in range(-(-count // box)):
            c = np.arange(box)
            inside, place = c < count - j * box, narrow(first + step * (j * box + c))
            if self.kind.listed and self.kind.rank == 1:
                at = self.words[keys_at + np.where(inside, place, first)] if keys_at else place
                mask = inside & (at >= low[:, None]) & (at < high[:, None])
            else:
                at = place
                start, stop = (self.positions(here, bound, first) - j * box for bound in (low, high))
                mask = (c >= start[:, None]) & (c < stop[:, None])
            assert not mask[valid][:, ~inside].any(), "a key beyond the run is live"
            is_full = left <= j < left + full
            assert inside.all() or not is_full, "a box that ends early is said to be full"
            found.append((at[inside], mask[:, inside], is_full))
        return found

    def bounds(self, here, i, item, valid):
        """(low, high) of every row of a tile: live keys are low <= k < high, in coordinates."""
        length = int(self.words[here + 2])
        if self.kind.rank > 1:
            found = self.words[self.words[here + 3] + 2 * np.where(valid, i, 0)[:, None] + np.arange(2)]
            return found.T
        if self.kind.formula:
            kind = self.line if self.lines else self.stair
            stairs = range(1 if self.lines else 2)
            low = [kind(here + AXIS + 8 * b, i) for b in stairs]
            high = [kind(here + AXIS + 16 + 8 * b, i) for b in stairs]
        else:
            low, high = (self.listed_bounds(here + AXIS + 2 * side, i, item) for side in range(2))
        zero = np.zeros_like(i)
        return np.maximum.reduce([zero, *low]), np.minimum.reduce([zero + length, *high])

    def positions(self, here, bound, first):
        step, inverse, digits = (int(self.words[here + i]) for i in (0, 4, 5))
        beyond = np.maximum(narrow(bound - first + step - 1), 0).astype(np.uint64)
        return (2 * beyond * np.uint64(inverse % (1 << 32)) >> np.uint64(32 + digits)).astype(np.int64)

    def listed_bounds(self, listed, i, item):
        first, count = (int(x) for x in self.words[listed : listed + 2])
        records = [first + b * BOUND.value for b in range(count)]
        return [(self.steps(r + 1, i, item) if self.words[r] else self.stair(r + 1, i)) for r in records]

    def line(self, record, i):
        rise, _, _, base, out_lo, out_hi, _, _ = (int(x) for x in self.words[record : record + 8])
        return np.clip(narrow(narrow(i * rise) + base), out_lo, out_hi)

    def stair(self, record, i):
        rise, run, shift, base, out_lo, out_hi, in_lo, in_hi = (int(x) for x in self.words[record : record + 8])
        value = narrow(narrow(towards_zero(narrow(i + shift), run) * rise) + base)
        value = np.where(i < in_lo, -(1 << 30), np.clip(value, out_lo, out_hi))
        return np.where(i >= in_hi, 1 << 30, value)

    def steps(self, record, i, item):
        breaks, values, spans = (int(x) for x in self.words[record : record + 3])
        first, last = (int(x) for x in self.words[spans + 2 * item :][:2])
        value = np.full_like(i, self.words[values + first])
        for j in range(first, last):
            value = np.where(i >= self.words[breaks + j], self.words[values + j + 1], value)
        return value

    def is_out(self, place, tokens):
        """Which tokens have their bit set."""
        if not (self.kind.listed and place):
            return np.zeros(tokens.shape, bool)
        word = np.minimum(tokens // 32, self.words[place - 1])
        return (self.words[place + word] >> (tokens % 32)) & 1 != 0


def row_major(at, lengths):
    """Tokens of points given by one array of coordinates for each axis."""
    token = at[0]
    for coordinate, length in zip(at[1:], lengths[1:], strict=True):
        token = token * length + coordinate
    return narrow(token)


def row_major_grid(at, lengths):
    """Tokens of all points of a box given by its coordinates along each axis."""
    token = np.zeros(1, np.int64)
    for coordinate, length in zip(at, lengths, strict=True):
        token = (token[:, None] * length + coordinate).reshape(-1)
    return token
