"""Split-KV: programs have a few rows and a share of the tiles of their live keys; a second kernel combines the shares.

`weft.kernels.gpu.split_kv.tables` says how tables of rows are packed. What is counted on the device is read from slots.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import numpy as np

from weft.kernels.gpu.oracle.bounds import divided, remainder, stair
from weft.kernels.gpu.oracle.laws import law
from weft.kernels.gpu.oracle.memory import Bools, Call, Ints
from weft.kernels.gpu.oracle.numbers import Scoring, SoftMaximum
from weft.kernels.gpu.split_kv.tables import BOUND, CLASSES, MEMBER, term_words
from weft.planning.tiling.gpu import FAR

LN2 = float(np.log(2.0))


class Rows(NamedTuple):
    """Rows of a program.

    row, head, valid, sees (rows,): which exist, and which may see a key. i_0, i: rows as terms count them. least
    (rows,): the first key that each may see, whatever its terms say. length: keys that there are. beside: from a row
    to the key beside it. terms: where their records are.
    """

    batch: int
    kv_head: int
    row: Ints
    head: Ints
    valid: Bools
    sees: Bools
    i_0: int
    i: Ints
    least: Ints
    length: int
    beside: int
    terms: list[int]


class Keys(NamedTuple):
    """The run of keys of one term: row r sees the places low[r] <= x < high[r] of first, first + step, ..."""

    low: Ints
    high: Ints
    first: int
    step: int
    places: int


# ---- which rows and keys ---------------------------------------------------------------------------------------------
def _rows(call: Call, place: int) -> Rows:
    """The rows of one program along the first axis of the grid."""
    spec = call.spec
    groups, lanes, span, m = (call.integer(name) for name in ("groups", "lanes", "span", "m"))
    batch, kv_head, first_head, heads, count, terms = _member(call, place // groups)
    place = place % groups
    row_0 = place % lanes + place // lanes * (lanes * span)
    r = np.arange(spec.rows)
    row, head = row_0 + lanes * (r // heads), first_head + r % heads
    valid = (r < span * heads) & (row < m)
    law(span * heads <= spec.rows, "a program has more rows than it holds")
    shift, beside, length = _counted(call, batch, m)
    i_0, i, sees = row_0 + shift, row + shift, valid
    if spec.counts.dtype:
        sees = valid & (i >= 0)
        i_0 += lanes * m if i_0 < 0 else 0  # a row of the same residue classes that exists
    least = _least(call, batch, i, length)
    where = [terms + n * term_words(spec.bounds) for n in range(count)]
    return Rows(batch, kv_head, row, head, valid, sees, i_0, i, least, length, beside, where)


def _member(call: Call, number: int) -> list[int]:
    """Of a member its batch row, key/value head, first query head, query heads, terms, and where their records are."""
    spec, words, at = call.spec, call.table(), call.integer("members_at")
    if spec.group:  # all heads have the same
        parts = spec.group // spec.heads
        batch, kv_head = divmod(number // parts, call.integer("all_heads") // spec.group)
        return [batch, kv_head, kv_head * spec.group + number % parts * spec.heads, spec.heads, spec.terms, at]
    at += MEMBER * number
    law(at + MEMBER <= words.size, "a member lies beyond the tables")
    return words[at : at + MEMBER].tolist()


def _counted(call: Call, batch: int, m: int) -> tuple[int, int, int]:
    """(from a query to its row among a term's, to the key beside it, number of keys), as the host or the device says.

    Of a cache that is no ring, keys beyond its capacity are never read.
    """
    counts = call.spec.counts
    if not counts.dtype:
        return call.integer("shift"), call.integer("beside"), call.integer("length")
    at = batch if counts.per_batch else 0
    length = call.counted("KeyCount", at)
    shift = call.counted("Offset", at) if counts.offset else length - m
    return shift, shift, length if counts.ring else min(length, call.integer("capacity"))


def _least(call: Call, batch: int, i: Ints, length: int) -> Ints:
    """The first key that rows may see: older ones are overwritten in a ring, or lie before a window."""
    counts, least = call.spec.counts, np.zeros_like(i)
    if counts.ring:
        least = np.maximum(least, length - call.integer("capacity"))
    if counts.window:
        least = np.maximum(least, i + 1 - call.counted("Window", batch if counts.per_batch else 0))
    return least


def _keys(call: Call, rows: Rows, record: int) -> Keys:
    """The run of keys that some of the rows see under one term, all of one residue class."""
    words, n, i = call.table(), call.spec.bounds, rows.i
    low, high = rows.least, np.full_like(i, rows.length)
    for b in range(n):
        low = np.maximum(low, _bound(words, record + CLASSES + BOUND * b, i))
        high = np.minimum(high, _bound(words, record + CLASSES + BOUND * (n + b), i))
    step, phase, some = _class_of(words, record, rows.i_0)
    row_step, row_phase = (int(x) for x in words[record + 8 : record + 10])
    seen = rows.sees & (remainder(i, row_step) == row_phase) & (low < high) & some
    low, high = np.where(seen, low, FAR), np.where(seen, high, 0)
    first, last = int(low.min()), int(high.max())
    first += int(remainder(remainder(np.array(phase - first), step) + step, step))
    count = max(int(_places(np.array(last), first, step)), 0)
    return Keys(_places(low, first, step), _places(high, first, step), first, step, count)


def _bound(words: Ints, record: int, i: Ints) -> Ints:
    """A bound of the rows i: a staircase, or a step function by bisection."""
    if not words[record]:
        return stair(words, record + 1, i)
    breaks, values, count, rounds = (int(x) for x in words[record + 1 : record + 5])
    law(1 << rounds > count, "a bisection has too few rounds")
    return words[values + np.searchsorted(words[breaks : breaks + count], i, side="right")]


def _class_of(words: Ints, record: int, i: int) -> tuple[int, int, bool]:
    """(step, phase, some): keys of row i that obey a term's congruences are phase modulo step, if some."""
    step, stride, common, inverse, key_step, key_phase, diagonal_step, diagonal_phase = (
        int(x) for x in words[record : record + 8]
    )
    gap = int(remainder(np.array(i + diagonal_phase), diagonal_step)) - key_phase + step
    phase = key_phase + key_step * int(remainder(divided(np.array(gap), common) * inverse, stride))
    return step, phase, gap % common == 0


def _places(bound: Ints, first: int, step: int) -> Ints:
    """Keys before `bound` among first, first + step, ...; 0 or less if there are none."""
    return divided(bound - first + step - 1, step)


# ---- shares ----------------------------------------------------------------------------------------------------------
def rows(call: Call) -> None:
    """Out and Lse of a program's rows, or of its share the mean of values and lse in bits, left in Work."""
    scoring, splits = Scoring(call, 0), call.integer("splits")
    law(call.spec.split or splits == 1, "one kernel has several shares, and nothing combines them")
    for place, split in product(range(call.grid[0]), range(call.grid[1])):
        mine = _rows(call, place)
        sums = SoftMaximum(call.spec.rows, call.spec.dv)
        heads = np.where(mine.valid, mine.head, mine.head[0])
        q = call.tensor("Q").load(mine.batch, heads, np.where(mine.valid, mine.row, 0))
        for keys, tile in _tiles(call, mine, split, splits):
            x = tile * call.spec.cols + np.arange(call.spec.cols)
            token = keys.first + keys.step * np.minimum(x, keys.places - 1)
            at, place_of = _where(call, mine.batch, token)
            k, v = (call.tensor(name).load(at, mine.kv_head, place_of) for name in ("K", "V"))
            s = scoring.scores(q @ k.T, (mine.batch, heads), mine.row + mine.beside, token).s
            live = (x >= keys.low[:, None]) & (x < keys.high[:, None])
            sums.add(np.where(live, s, -np.inf), v)
        _write(call, mine, split, sums)


def _tiles(call: Call, mine: Rows, split: int, splits: int) -> Iterator[tuple[Keys, int]]:
    """The tiles of all terms that are in one share; shares differ by one tile at most."""
    law(call.spec.several or len(mine.terms) == 1, "a kernel of one term has others")
    found = [_keys(call, mine, record) for record in mine.terms]
    every = [(keys, tile) for keys in found for tile in range(-(-keys.places // call.spec.cols))]
    least, more = divmod(len(every), splits)
    first = least * split + min(split, more)
    yield from every[first : first + least + (split < more)]


def _where(call: Call, batch: int, token: Ints) -> tuple[int | Ints, Ints]:
    """(batch row or page, place in it) of tokens. A number in the block table that is no page counts as the nearest."""
    counts, place = call.spec.counts, token
    if counts.ring:
        place = token % call.integer("capacity")
    if not counts.page:
        return batch, place
    table, pages = call.indices("BlockTable", call.integer("table_row")), call.integer("pages")
    law(table.shape[1] * counts.page == call.integer("capacity"), "the capacity is not that of the block table")
    return np.clip(table[batch, place // counts.page], 0, pages - 1), place % counts.page


def _numbers(call: Call, mine: Rows) -> Ints:
    """The numbers of valid rows among those of all batch rows and heads."""
    number = (mine.batch * call.integer("all_heads") + mine.head) * call.integer("m") + mine.row
    return number[mine.valid]


def _write(call: Call, mine: Rows, split: int, sums: SoftMaximum) -> None:
    valid, spec = mine.valid, call.spec
    if spec.split:
        at = _numbers(call, mine) * call.integer("splits") + split
        mean, lse = sums.finish()
        call.flat("Work").store(lse[valid] / LN2, at)
        some = sums.total[valid] != 0
        place = 4 * call.integer("sums") + at[some][:, None] * spec.dv + np.arange(spec.dv)
        call.flat("Work").store(mean[valid][some], place)
        return
    sink = call.flat("Sinks").load(np.where(valid, mine.head, mine.head[0])) if spec.sinks else None
    out, lse = sums.finish(sink)
    call.flat("Lse").store(lse[valid], _numbers(call, mine))
    call.tensor("Out").store(out[valid], mine.batch, mine.head[valid], mine.row[valid])


# ---- combine --------------------------------------------------------------------------------------------------------
def combine(call: Call) -> None:
    """Out and Lse of every row from its shares; a share of no key has an lse only."""
    spec, m, heads, splits = call.spec, call.integer("m"), call.integer("all_heads"), call.integer("splits")
    work, sums_at = call.flat("Work"), 4 * call.integer("sums")
    for number in range(call.grid[0]):
        (pair, row), sums = divmod(number, m), SoftMaximum(1, spec.dv)
        at = number * splits + np.arange(splits)
        lse = work.load(at) * LN2
        some = lse != -np.inf
        means = work.load(sums_at + at[some][:, None] * spec.dv + np.arange(spec.dv))
        if some.any():
            sums.add(lse[some][None, :], means)
        out, total = sums.finish(float(call.flat("Sinks").load(pair % heads)) if spec.sinks else None)
        call.flat("Lse").store(total[0], number)
        call.tensor("Out").store(out[0], pair // heads, pair % heads, row)
