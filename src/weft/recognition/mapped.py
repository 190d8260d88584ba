"""Masks in mapped files, which may be larger than memory: guessed from a corner, proven strip by strip.

No more than a strip of the file is in memory at a time. Only where the guess fails, a matrix of bits is made of it. A
mask that is noise at both ends is listed as it stands.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from functools import reduce
from operator import or_
from typing import Any

import numpy as np

from weft.acsr import stairs
from weft.pattern.algebra import Pattern
from weft.pattern.pieces import SIDES
from weft.recognition import bounds, grids, names, spell
from weft.recognition.bitrows import WORD, BitRows, strips, width
from weft.recognition.lines import Line
from weft.recognition.parts import Known
from weft.recognition.raster import of_relation, raster
from weft.recognition.search import Found, in_blocks, search

CORNERS = (1024, 2048, 4096, 8192)  # queries and keys that a guess is made from
SHARE = 16  # a corner is at most this part of the mask, and what is written of its rows this part of their number


def mapping(mask: Any) -> Any:
    """The mapped file under an array; None if there is none."""
    base = mask
    while isinstance(base, np.ndarray):
        base = base.base
    return base if isinstance(base, mmap.mmap) else None


def _let_go(mask: Any) -> None:
    """Give the pages that were read back, but not those that may hold changes that no file has. A writable mapping is
    taken for a copy on write unless numpy made it and says that it is none.
    """
    safe, base = False, mask
    while isinstance(base, np.ndarray):
        safe |= isinstance(base, np.memmap) and base.mode in ("r+", "w+")
        base = base.base
    with memoryview(base) as view:
        safe |= view.readonly
    if safe and hasattr(mmap, "MADV_DONTNEED"):
        base.madvise(mmap.MADV_DONTNEED)


def packed_strips(mask: Any) -> Iterator[tuple[int, int, BitRows]]:
    """(first, last + 1, rows) of a mapped mask; read pages are let go, since they count as this process's."""
    for a, b in strips(*mask.shape):
        yield a, b, BitRows.pack(mask[a:b])
        _let_go(mask)


def packed(mask: Any) -> BitRows:
    """The whole mask as bits, an eighth of its size."""
    words = np.zeros((mask.shape[0], width(mask.shape[1])), "<u8")
    for a, b, rows in packed_strips(mask):
        words[a:b] = rows.words
    return BitRows(words, mask.shape[1])


def guessed(mask: Any) -> tuple[Pattern, int] | None:
    """(pattern, live pairs): what a corner of the mask looks like, or the ends of its rows, if it holds on every pair;
    else None.
    """
    for corner in CORNERS:
        if SHARE * corner * corner > mask.size:
            break
        pattern = _corner(mask, min(corner, *mask.shape))
        count = None if pattern is None else _proven(pattern, mask)
        if pattern is not None and count is not None:
            return pattern, count
    pattern = _of_intervals(mask) if mask.size >= SHARE * CORNERS[0] ** 2 else None
    count = None if pattern is None else _proven(pattern, mask)
    return None if pattern is None or count is None else (pattern, count)


def _of_intervals(mask: Any) -> Pattern | None:
    """A square mask of which every row is one interval, its ends non-decreasing and short to write: documents."""
    m, n = mask.shape
    ends = np.empty((2, m), np.int64)
    for a, b, rows in packed_strips(mask) if m == n else ():
        ends[:, a:b] = rows.first, rows.last + 1
        if (rows.row_counts() != ends[1, a:b] - ends[0, a:b]).any() or not rows.queries.all():
            return None
    if m != n or (np.diff(ends) < 0).any():
        return None
    first, last = (
        names.same_part(side, stairs.simplest(at, at, n), m, n) for side, at in zip(SIDES, ends, strict=True)
    )
    if first is not None and first == last:
        return first
    lower, upper = (bounds.listed(side, Line.table(at), n, None) for side, at in zip(SIDES, ends, strict=True))
    found = spell.meet([upper, lower if first is None else first])
    return found if SHARE * names.cost(found) <= m else None


def compact(rows: BitRows) -> Pattern | None:
    """A large mask made of blocks, or a neighbourhood on a grid. It is told and proven with few matrices of bits at a
    time. None if it is neither. The whole search keeps a dozen of them.
    """
    if rows.m * rows.n < SHARE * CORNERS[0] ** 2:
        return None
    for attempt in (in_blocks, _neighborhood):
        pattern = attempt(rows)
        if pattern is not None and rows.m != rows.n:
            pattern = pattern.filled("top-left")
        if pattern is not None and raster(pattern, rows.m, rows.n).same(rows):
            return pattern
    return None


def _neighborhood(rows: BitRows) -> Pattern | None:
    axes = grids.axes_of(rows) if rows.m == rows.n else None
    return grids.neighborhood(axes) if axes and len(axes) > 1 else None


def noisy(mask: Any) -> bool:
    """Whether both its first and its last queries and keys came out as lists of bits. The whole is not searched then,
    which takes many matrices of bits.
    """
    size = CORNERS[0]
    if SHARE * size * size > mask.size or min(mask.shape) < size:
        return False
    corners = (_searched(mask[at, at]) for at in (slice(0, size), slice(-size, None)))
    return all(found.loose is not None and found.cost > size * size // WORD for found in corners)


def _searched(mask: Any) -> Found:
    rows = BitRows.pack(np.array(mask))
    return search(Known(rows, rows.inverted()))


def _corner(mask: Any, size: int) -> Pattern | None:
    """What the first queries and keys are, if they have a closed form."""
    found = _searched(mask[:size, :size])
    if found.loose is not None:
        return None
    return found.pattern if mask.shape[0] == mask.shape[1] else found.pattern.filled("top-left")


def _proven(pattern: Pattern, mask: Any) -> int | None:
    """The live pairs of a mask that equals a pattern on every pair; None if it does not, or the pattern is a grid."""
    m, n = mask.shape
    try:
        pattern.check(m, n, str(pattern))
    except ValueError:  # it has a meaning at the size of the corner only
        return None
    rows = pattern.acsr(m, n)
    plain = all(term.rank == 1 and term.rows.is_every and term.keys.is_every for term in rows.terms)
    if len(rows.remainder) or not rows.terms or not plain:
        return None
    for a, b, live in packed_strips(mask):
        parts = [of_relation(term.axes[0].moved(-a, 0), b - a, n) for term in rows.terms]
        if not reduce(or_, parts).same(live):
            return None
    return rows.nnz
