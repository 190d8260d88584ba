"""Rectangles and triangles of live pairs: what torch's own fused attention computes without a mask of ours.

A nest whose rows all see such shapes leaves the tiles where that costs less. Long causal attention is one triangle, and
documents are one shape each. The last rows against a cache are a rectangle and a small triangle. Windows stay with
tiles, which are as fast there (docs/decisions/0013).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from weft.acsr.relayout import Lanes
from weft.kernels.cpu.boxes import StridedBox
from weft.pattern.bounds import Ints
from weft.planning.tiles import LoopNest, Part

RECTANGLE, TRIANGLE, APART = 0, 1, 2  # how a row's keys differ from those of the row before
FEW = 16  # rows: of more, half that share keys with no neighbour are left to tiles at once
MOST = 4096  # calls of torch's kernel, before those that lie evenly apart are joined
KEYS = 512  # torch's kernel takes so many at once, and all of them where a triangle has some
# Seconds of one thread at D = 64 (docs/decisions/0013): of a pair, of a call or a batch, and of a merged row. Tiles
# merge in buffers that are still in a cache.
PAIR, CALL, MERGED = 2.7e-9, 4e-5, 2e-7
TILE_PAIR, BATCH = 3.0e-9, 1e-4


@dataclass(frozen=True)
class Dense:
    """Queries that see all of the keys; or, if `causal`, query i of the box the keys 0 to i of its own.

    fresh: nothing before it has a query in common with it.
    """

    queries: StridedBox
    keys: StridedBox
    causal: bool = False
    fresh: bool = True

    @property
    def shape(self) -> tuple[object, ...]:
        """Those of one shape that lie evenly apart are computed together."""
        return self.queries.sizes, self.queries.strides, self.keys.sizes, self.keys.strides, self.causal


def dense_of(nest: LoopNest) -> tuple[Dense, ...] | None:
    """The pairs of a nest, each once; None where some row has others, or calls would be many."""
    if not all(map(_is_plain, nest.parts)):
        return None
    found: list[Dense] = []
    for part in nest.parts:
        shapes = _shapes(nest, part)
        if shapes is None:
            return None
        found += shapes
    return tuple(_joined(found))


def seconds(dense: tuple[Dense, ...], heads: int, wide: float, merges: bool) -> float:
    """What torch's kernel is predicted to take. wide: vectors of keys and values, in multiples of 64. merges: other
    nests have these rows too.
    """
    pairs = sum(one.queries.count * _computed(one) for one in dense)
    rows = sum(one.queries.count * one.queries.size for one in dense) if merges else 0
    return len(dense) * CALL + heads * (pairs * PAIR + rows * MERGED) * wide


def seconds_of_tiles(pairs: int, batches: int, heads: int, wide: float) -> float:
    """What tiles are predicted to take for so many pairs, live or not, in so many batches."""
    return batches * BATCH + heads * pairs * TILE_PAIR * wide


def _computed(one: Dense) -> int:
    """Pairs of one box that torch's kernel computes."""
    rows, keys = one.queries.size, one.keys.size
    if not one.causal:
        return rows * keys
    ends = np.arange(KEYS, rows + KEYS, KEYS)  # of the keys that each KEYS queries go through
    return int((np.minimum(ends, keys) * np.minimum(KEYS, rows - ends + KEYS)).sum())


def in_order(dense: tuple[Dense, ...], m: int) -> tuple[Dense, ...]:
    """The same, `fresh` where all queries are met for the first time."""
    seen, found = np.zeros(m, np.bool_), []
    for one in dense:
        queries = one.queries.tokens().reshape(-1)
        found.append(replace(one, fresh=not seen[queries].any()))
        seen[queries] = True
    return tuple(found)


def _is_plain(part: Part) -> bool:
    """Whether a part has one axis and no list or order of tokens."""
    lanes = part.axes[0].lanes
    listed = lanes.queries is not None or lanes.keys is not None or part.k.order is not None
    return len(part.axes) == 1 and not listed and part.rows.is_every and part.keys.is_every


def _shapes(nest: LoopNest, part: Part) -> list[Dense] | None:
    """Those of one part in the order of its lanes; None if there are more than MOST."""
    axis = part.axes[0]
    found: list[Dense] = []
    for lane, rows in enumerate(axis.lanes.rows.tolist()):
        lo, hi = axis.lanes.bounds(axis.relation, axis.n, np.full(rows, lane), np.arange(rows, dtype=np.int64))
        if rows > FEW and np.count_nonzero(_kinds(lo, hi) == APART) > rows // 2:
            return None
        for first, last, kind in _runs_of_rows(lo, hi):
            found += _dense(nest, part, lane, (first, last), (int(lo[first]), int(hi[first])), kind)
            if len(found) > MOST:
                return None
    return found


def _kinds(lo: Ints, hi: Ints) -> Ints:
    """How the keys of each row but the first differ from those of the row before."""
    live = hi > lo
    still, rise = lo[1:] == lo[:-1], hi[1:] - hi[:-1]
    kinds = np.where(still & (rise == 0), RECTANGLE, np.where(still & (rise == 1), TRIANGLE, APART))
    kinds[~(live[1:] & live[:-1])] = APART
    return kinds


def _runs_of_rows(lo: Ints, hi: Ints) -> Iterator[tuple[int, int, int]]:
    """(first row, last row + 1, kind) of runs of rows that see something, the longest first found."""
    live, kinds = hi > lo, _kinds(lo, hi)
    changes = np.flatnonzero(np.append(True, kinds[1:] != kinds[:-1])) if kinds.size else np.zeros(0, np.int64)
    at = 0
    for first, last in pairwise([*changes.tolist(), kinds.size]):
        kind = int(kinds[first])
        rows = range(at, last) if kind == APART else range(max(at, first), last + 1)
        at = rows.stop
        if kind != APART:
            yield rows.start, rows.stop, kind
            continue
        yield from ((row, row + 1, RECTANGLE) for row in rows if live[row])
    yield from ((row, row + 1, RECTANGLE) for row in range(at, lo.size) if live[row])


def _dense(
    nest: LoopNest, part: Part, lane: int, rows: tuple[int, int], keys: tuple[int, int], kind: int
) -> Iterator[Dense]:
    """The shapes of rows whose first one sees `keys`: under a triangle lies a rectangle of the keys before it."""
    (first, last), (lo, hi), lanes = rows, keys, part.axes[0].lanes
    queries = StridedBox.on(nest.q, [(int(lanes.q_first[lane]) + lanes.q_step * first, lanes.q_step, last - first)])
    if kind == RECTANGLE or last - first == 1:
        yield Dense(queries, _keys(part, lanes, lane, (lo, hi)))
        return
    if hi - 1 > lo:
        yield Dense(queries, _keys(part, lanes, lane, (lo, hi - 1)))
    yield Dense(queries, _keys(part, lanes, lane, (hi - 1, hi - 1 + last - first)), causal=True)


def _keys(part: Part, lanes: Lanes, lane: int, span: tuple[int, int]) -> StridedBox:
    start, stop = span
    return StridedBox.on(part.k, [(int(lanes.k_first[lane]) + lanes.k_step * start, lanes.k_step, stop - start)])


def _joined(dense: list[Dense]) -> list[Dense]:
    """Those of one shape side by side, and neighbours as one where their queries and keys lie evenly apart."""
    groups: dict[tuple[object, ...], list[Dense]] = {}
    for one in dense:
        groups.setdefault(one.shape, []).append(one)
    return [run for group in groups.values() for run in _even(group)]


def _even(group: list[Dense]) -> Iterator[Dense]:
    """Runs of boxes that lie as far apart as the first two of the run; keys of a run do not overlap."""
    run, gap = [group[0]], (0, 0)
    for before, one in pairwise(group):
        here = one.queries.first - before.queries.first, one.keys.first - before.keys.first
        if min(here) > 0 and _are_apart(one.keys, here[1], len(run) + 1) and (len(run) == 1 or here == gap):
            run, gap = [*run, one], here
        else:
            yield _as_one(run, gap)
            run = [one]
    yield _as_one(run, gap)


def _are_apart(box: StridedBox, pitch: int, count: int) -> bool:
    """Whether `count` such boxes of one axis, `pitch` tokens from one to the next, share no token."""
    (size,), (stride,) = box.sizes, box.strides
    return pitch >= stride * (size - 1) + 1 or pitch * (count - 1) < stride


def _as_one(run: list[Dense], gap: tuple[int, int]) -> Dense:
    count, first = len(run), run[0]
    pitches = gap if count > 1 else (0, 0)
    ends = zip((first.queries, first.keys), pitches, strict=True)
    queries, keys = (replace(box, count=count, pitch=pitch) for box, pitch in ends)
    return replace(first, queries=queries, keys=keys)
