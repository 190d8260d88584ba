"""Flattened grids, their shape unknown: a mask that is a product over the axes of one, and neighbourhoods on them.

A mask on h x w points is a product iff every pair that its two projections admit is live. The projections come from
or-ing rows, for every divisor of the length.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.pattern import composites
from weft.pattern.algebra import Pattern
from weft.pattern.bounds import Ints
from weft.recognition.bitrows import STRIP, BitRows, width
from weft.recognition.parts import Known
from weft.recognition.raster import kronecker, raster

SAMPLES = 6  # rows on which a shape is tried before the whole mask is
MAX_GRIDS = 4  # shapes worked out to the end
MAX_STRIDES = 8


@dataclass(frozen=True, eq=False)
class Split:
    """The mask is outer x inner: inner relates w queries to w_keys keys."""

    outer: BitRows
    inner: BitRows

    @property
    def shape(self) -> tuple[int, int]:
        return self.outer.m, self.inner.m

    @property
    def key_shape(self) -> tuple[int, int]:
        return self.outer.n, self.inner.n


def splits(known: Known) -> Iterator[Split]:
    """Every way to see the mask as a product over two axes, the shortest inner axis first."""
    m, n = known.size
    for w in _divisors(m):
        for w_keys in [w] if m == n else _divisors(n):
            if _plausible(known, w, w_keys):
                split = _split(known.live, w, w_keys)
                if not kronecker([split.outer, split.inner]).meets(known.dead):
                    yield split


def _divisors(n: int) -> list[int]:
    """Without 1 and n."""
    small = [d for d in range(2, int(n**0.5) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})


def _plausible(known: Known, w: int, w_keys: int) -> bool:
    """Whether in some rows the live keys are a product over (outer, inner) as far as dead pairs tell."""
    live = np.flatnonzero(known.live.queries)
    for row in live[np.linspace(0, live.size - 1, SAMPLES).astype(int)] if live.size else live:
        on = known.live.dense(slice(row, row + 1)).reshape(-1, w_keys)
        off = known.dead.dense(slice(row, row + 1)).reshape(-1, w_keys)
        outer, inner = np.logical_or.reduce(on, axis=1), np.logical_or.reduce(on, axis=0)
        if (outer[:, None] & inner & off).any():
            return False
    return True


def _split(live: BitRows, w: int, w_keys: int) -> Split:
    """Projections of the live pairs on the two axes."""
    m, n = live.m, live.n
    grid = live.words.reshape(m // w, w, width(n))
    by_outer = BitRows(np.bitwise_or.reduce(grid, axis=1), n)
    by_inner = BitRows(np.bitwise_or.reduce(grid, axis=0), n)
    return Split(_folded(by_outer, (n // w_keys, w_keys), 2), _folded(by_inner, (n // w_keys, w_keys), 1))


def _folded(rows: BitRows, shape: tuple[int, int], axis: int) -> BitRows:
    """Rows of keys of two axes, projected along one of them."""
    step = max(1, STRIP // max(1, rows.n))
    parts = [
        BitRows.pack(rows.dense(slice(a, a + step)).reshape(-1, *shape).any(axis=axis)) for a in range(0, rows.m, step)
    ]
    return BitRows(np.concatenate([part.words for part in parts]), parts[0].n)


@dataclass(frozen=True)
class Axis:
    """NATTEN's rule on one axis."""

    length: int
    size: int
    stride: int
    dilation: int
    causal: bool


def neighborhood(axes: list[Axis]) -> Pattern:
    """The pattern, integers where all axes agree."""
    columns = [
        [axis.length for axis in axes],
        *([getattr(axis, name) for axis in axes] for name in ("size", "stride", "dilation", "causal")),
    ]
    values = [tuple(c) if i == 0 or len(set(c)) > 1 else c[0] for i, c in enumerate(columns)]
    return composites.neighborhood(*values)


def axes_in(args: dict[str, Any]) -> list[Axis]:
    """The axes of a call that `neighborhood` made."""
    shape = args["shape"].array.tolist()
    names = (("size", 1), ("stride", 1), ("dilation", 1), ("causal", False))
    columns = [args.get(name, default) for name, default in names]
    spread = [[c] * len(shape) if isinstance(c, int) else list(getattr(c, "array", c)) for c in columns]
    return [
        Axis(length, int(size), int(stride), int(dilation), bool(causal))
        for length, size, stride, dilation, causal in zip(shape, *spread, strict=True)
    ]


def axis_of(rows: BitRows) -> Axis | None:
    """The neighbourhood that a square mask of one axis is, if it is one."""
    length = rows.n
    counts = rows.row_counts()
    if rows.m != length or length < 2 or not counts.all():
        return None
    size = int(counts.max())
    fullest = np.flatnonzero(rows.dense(slice(int(counts.argmax()), int(counts.argmax()) + 1))[0])
    dilation = int(fullest[1] - fullest[0]) if size > 1 else 1
    if size * dilation > length:
        return None
    if not np.array_equal(rows.last - rows.first, (counts - 1) * dilation):  # settles most
        return None
    if counts.min() == size == length:
        return Axis(length, length, 1, 1, False)
    for causal in (False, True) if counts.min() == size else (True,):
        for stride in _strides(rows.first, size, dilation):
            axis = Axis(length, size, stride, dilation, causal)
            if (
                stride <= size
                and _begins(axis, rows, counts)
                and raster(neighborhood([axis]), length, length).same(rows)
            ):
                return axis
    return None


def _begins(axis: Axis, rows: BitRows, counts: Ints) -> bool:
    """Whether every row has the first key and the number of keys that the rule says."""
    relation = neighborhood([axis]).body.parts[0].relation  # type: ignore[attr-defined]
    start, _, count = relation.affine_rows(np.arange(axis.length, dtype=np.int64), axis.length)
    return bool(np.array_equal(count, counts) and np.array_equal(start, rows.first))


def _strides(first: Ints, size: int, dilation: int) -> list[int]:
    """How long the first key stays where it is, in the residue class of token 0: the shortest first."""
    starts = first[::dilation]
    changes = np.flatnonzero(np.diff(starts)) + 1
    gaps = Counter(np.diff(changes).tolist()).most_common(MAX_STRIDES)
    ends = (*changes[:1].tolist(), *(starts.size - changes[-1:]).tolist())
    return sorted({s for s in (*(gap for gap, _ in gaps), *ends, *range(1, 9)) if 1 <= s <= size})


def axes_of(rows: BitRows, rank: int = 3) -> list[Axis] | None:
    """The mask as a neighbourhood on 1 to `rank` axes, fewest axes first."""
    one = axis_of(rows)
    if one or rank == 1 or rows.m != rows.n:
        return [one] if one else None
    found = list(splits(Known(rows, rows.inverted())))
    for most in range(2, rank + 1):
        for split in found:
            inner = axis_of(split.inner)
            outer = axes_of(split.outer, most - 1) if inner else None
            if inner and outer:
                return [*outer, inner]
    return None


def block_of(rows: BitRows) -> tuple[int, int]:
    """The largest blocks of which every one is full or empty (the last ones may be ragged)."""
    by_key = np.flatnonzero(rows.next_key_differs()) + 1
    by_query = np.flatnonzero((rows.words[1:] != rows.words[:-1]).any(axis=1)) + 1
    return _common(by_query, rows.m), _common(by_key, rows.n)


def sides_of_blocks(known: Known) -> int:
    """What the side of square blocks divides, each of which is live or dead as far as it is decided. They end between
    neighbours of which one is live and the other dead. 0 where there are no such neighbours.
    """
    live, dead = known.live.words, known.dead.words
    by_query = ((live[1:] & dead[:-1]) | (dead[1:] & live[:-1])).any(axis=1)
    by_key = known.live.next_key_in(known.dead) | known.dead.next_key_in(known.live)
    return int(np.gcd.reduce(np.concatenate([np.flatnonzero(by_query), np.flatnonzero(by_key)]) + 1, initial=0))


def _common(places: Ints, length: int) -> int:
    return int(np.gcd.reduce(places)) if places.size else max(1, length)


def shrunk(rows: BitRows, block: tuple[int, int]) -> BitRows:
    """One pair for each block."""
    kept = rows.words[:: block[0]]
    out = BitRows(kept, rows.n)
    step = max(1, STRIP // max(1, rows.n))
    parts = [out.dense(slice(a, a + step))[:, :: block[1]] for a in range(0, out.m, step)]
    return BitRows.pack(np.concatenate(parts))


def block_any(rows: BitRows, block: int) -> BitRows:
    """One pair for each square block: whether any pair of it is in; the last blocks may be ragged."""
    starts = np.arange(0, rows.m, block)
    tall = BitRows(np.bitwise_or.reduceat(rows.words, starts, axis=0), rows.n)
    return BitRows.pack(np.logical_or.reduceat(tall.dense(), np.arange(0, rows.n, block), axis=1))
