"""Which keys some queries see, as a set of tokens: from the bounds of an Acsr, never from pairs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import lcm

import numpy as np

from weft.acsr.format import BLOCK, Acsr, Remainder, Term
from weft.acsr.tokens import EMPTY, Tokens, boxes_of_run, grid_of, union
from weft.pattern.bounds import Ints
from weft.pattern.excerpt import Box
from weft.pattern.listed import Listed
from weft.pattern.relation import Relation

STRIDE = 64  # rows between the ones that are looked at, before all are where these leave a doubt


def needed(acsr: Acsr, rows: Tokens | Sequence[Box]) -> Tokens:
    """The keys that any of the rows sees, exactly. Rows that are boxes of the terms' own grid are looked at as such."""
    tokens = rows if isinstance(rows, Tokens) else union(map(Tokens.of_box, rows))
    return union([*(of_term(term, rows) for term in acsr.terms), _of_blocks(acsr.remainder, tokens, acsr.n)])


def of_term(term: Term, rows: Tokens | Sequence[Box]) -> Tokens:
    """The keys that any of the rows sees by one term."""
    if term.is_ordered:
        return _of_order(term, rows if isinstance(rows, Tokens) else union(map(Tokens.of_box, rows)))
    found = union(_in_grid(term, box) for box in _boxes(term, rows))
    return _chosen(Tokens(found.starts + term.k.origin, found.stops + term.k.origin), term.keys)


def _of_order(term: Term, rows: Tokens) -> Tokens:
    """The same of tokens in another order: a run of places is looked at as one."""
    order = term.q.tokens(np.arange(term.q.size, dtype=np.int64))
    places = Tokens.listed(np.flatnonzero(rows.holds(order)))
    runs = zip(places.starts.tolist(), places.stops.tolist(), strict=True)
    keys = union(of_axis(term.axes[0], run, term.k.size) for run in runs)
    return Tokens.listed(np.sort(term.k.tokens(keys.array())))


def _chosen(tokens: Tokens, of: Listed) -> Tokens:
    if of.is_every:
        return tokens
    listed = Tokens.listed(of.tokens.array)
    return tokens & listed if of.kept else tokens - listed


def _boxes(term: Term, rows: Tokens | Sequence[Box]) -> Iterator[Box]:
    """The rows of a term's grid that are asked about, as boxes of it."""
    grid = term.q
    if not isinstance(rows, Tokens):
        if grid.origin == 0 and term.rows.is_every and all(box.shape == grid.shape for box in rows):
            yield from rows
            return
        rows = union(map(Tokens.of_box, rows))
    rows = rows & Tokens.of(np.array([grid.origin]), np.array([grid.origin + grid.size]))
    rows = _chosen(rows, term.rows)
    for first, after in zip((rows.starts - grid.origin).tolist(), (rows.stops - grid.origin).tolist(), strict=True):
        yield from boxes_of_run(first, after, grid.shape)


def _in_grid(term: Term, box: Box) -> Tokens:
    """The keys of the term's grid that a box of its rows sees."""
    axes = [
        of_axis(axis, (first, first + size), n)
        for axis, first, size, n in zip(term.axes, box.first, box.sizes, term.k.shape, strict=True)
    ]
    return grid_of(term.k.shape, tuple(axes))


def of_axis(axis: Relation, rows: tuple[int, int], n: int) -> Tokens:
    """The keys of one axis that any of the rows [first, after) sees."""
    if rows[0] >= rows[1] or n == 0:
        return EMPTY
    if max(axis.rows.step, axis.keys.step, axis.diagonal.step) > 1:
        return _of_classes(axis, rows, n)
    return _joined(axis, rows, n)


@lru_cache(maxsize=1024)  # ranks of a grid have axes in common
def _joined(axis: Relation, rows: tuple[int, int], n: int) -> Tokens:
    """The same where no congruence leaves keys out."""
    # Bounds rise: where a row's keys end no earlier than those of a later row begin, none between them is left out.
    spans = np.array([[rows[0], rows[1] - 1]], np.int64)
    found: list[Tokens] = []
    stride = rows[1] - rows[0]
    while spans.size:
        low, high = axis.interval(spans, n)
        joined = (high[:, 0] >= low[:, 1]) | (spans[:, 0] == spans[:, 1])
        found.append(Tokens.of(low[joined, 0], high[joined, 1]))
        # rows as far apart as a row has keys are joined where bounds rise as rows do
        wide = int((high - low).min())
        stride = next(x for x in (wide, STRIDE, 1) if 1 <= x < stride or x == 1)
        spans = _between(spans[~joined], stride)
    return union(found)


def _between(spans: Ints, stride: int) -> Ints:
    """Spans of rows [first, last] as spans of at most so many rows, which share their ends; of one row where 1."""
    first, last = spans[:, 0], spans[:, 1]
    if stride == 1:
        rows = np.concatenate([np.arange(a, b + 1) for a, b in spans.tolist()]) if spans.size else first
        return np.stack([rows, rows], axis=1)
    counts = np.maximum(1, -(-(last - first) // stride))
    at = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    begin = np.repeat(first, counts) + at * stride
    return np.stack([begin, np.minimum(begin + stride, np.repeat(last, counts))], axis=1)


def _of_classes(axis: Relation, rows: tuple[int, int], n: int) -> Tokens:
    """The same where congruences leave keys out."""
    found = _by_period(axis, rows, n)
    return _marked(axis, rows, n) if found is None else found


def _by_period(axis: Relation, rows: tuple[int, int], n: int) -> Tokens | None:
    """The same where rows of a period see keys of every residue, joined as in `_joined`; None elsewhere.

    Rows are looked at in chunks of whole periods. From where the last residue begins to where the first ends, all keys
    are seen. Beside that, those of each residue are listed.
    """
    period = lcm(axis.rows.step, axis.keys.step, axis.diagonal.step)
    low, high = axis.interval(np.array([rows[0], rows[1] - 1], np.int64), n)
    chunk = max(1, int((high - low).max()) // (2 * period)) * period
    begin = np.arange(rows[0], max(rows[0] + 1, rows[1] - chunk + 1), chunk, dtype=np.int64)
    if begin.size * period > rows[1] - rows[0]:
        return None
    at = begin[:, None] + np.arange(period)
    after = np.append(begin[1:], rows[1])[:, None]
    low, high = axis.interval(np.stack([at, at + (after - 1 - at) // period * period]), n)
    step, phase, agree = axis.key_classes(at)
    seen = agree & axis.rows.holds(at)
    if (seen & (high[0] < low[1])).any() or np.unique(phase[0][seen[0]]).size < step:
        return None
    low, high = low[0], high[1]
    first, last = np.where(seen, low, 0).max(axis=1), np.where(seen, high, n).min(axis=1)
    if (first >= last).any():
        return None
    chunks = np.nonzero(seen)[0]
    before = _listed(low[seen], first[chunks], phase[seen], step)
    behind = _listed(last[chunks], high[seen], phase[seen], step)
    return union([Tokens.of(first, last), Tokens.listed(before), Tokens.listed(behind)])


def _listed(low: Ints, high: Ints, phase: Ints, step: int) -> Ints:
    """The keys of each residue from its low to before its high."""
    start = low + (phase - low) % step
    many = np.maximum(0, -((start - high) // step))
    place = np.arange(many.sum()) - np.repeat(np.cumsum(many) - many, many)
    return np.repeat(start, many) + step * place


def _marked(axis: Relation, rows: tuple[int, int], n: int) -> Tokens:
    """The same: runs of every so many keys are marked at both ends and summed."""
    start, step, count = axis.affine_rows(np.arange(*rows, dtype=np.int64), n)
    live = count > 0
    if not live.any():
        return EMPTY
    start, count = start[live], count[live]
    low, high = int(start.min()), int((start + step * count).max())
    marks = np.bincount(start - low, minlength=high - low + step)
    marks = marks - np.bincount(start + step * count - low, minlength=marks.size)
    seen = _padded(marks, step).reshape(-1, step).cumsum(axis=0).reshape(-1)[: n - low] > 0
    return Tokens.listed(np.flatnonzero(seen) + low)


def _padded(marks: Ints, step: int) -> Ints:
    return np.pad(marks, (0, -marks.size % step))


def _of_blocks(blocks: Remainder, rows: Tokens, n: int) -> Tokens:
    """The keys that any of the rows sees in the remainder."""
    if not len(blocks):
        return EMPTY
    at = BLOCK * blocks.rows.astype(np.int64)[:, None] + np.arange(BLOCK)
    mine = rows.holds(at.reshape(-1)).reshape(at.shape)
    touched = np.flatnonzero(mine.any(axis=1))
    columns = BLOCK * blocks.cols.astype(np.int64)[:, None] + np.arange(BLOCK)
    found = [np.zeros(0, np.int64)]
    for some in np.array_split(touched, max(1, touched.size // 4096)):
        index = blocks.bit_index[some]
        seen = np.ones((some.size, BLOCK), np.bool_)
        cut = index >= 0
        bits = np.unpackbits(blocks.bits[index[cut]], axis=2).view(np.bool_)
        seen[cut] = (bits & mine[some][cut][:, :, None]).any(axis=1)
        found.append(columns[some][seen])
    seen_by_some = np.unique(np.concatenate(found))
    return Tokens.listed(seen_by_some[seen_by_some < n])  # the last block may reach beyond the end
