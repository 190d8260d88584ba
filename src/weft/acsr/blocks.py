"""Blocks of pairs, bit by bit: what a pattern has that is not affine, while its Acsr is being built.

Pairs are kept on a grid of BLOCK x BLOCK blocks: some are full, some carry 4096 bits. Predicates are evaluated on
lists of blocks, a bounded number at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from weft.acsr.bits import BACKWARDS, Bits
from weft.acsr.format import BLOCK, Remainder, Term
from weft.errors import IrregularError
from weft.pattern.algebra import Where
from weft.pattern.bounds import Ints
from weft.pattern.leaves import BlockList
from weft.pattern.relation import NDBool

Predicate: TypeAlias = Callable[[Ints, Ints], NDBool]
BATCH = 512  # blocks evaluated at once: 2 million pairs
MAX_SCAN = 1 << 32  # pairs that a scan may look at: about a minute
OFFSETS = np.arange(BLOCK, dtype=np.int64)


@dataclass(frozen=True)
class Blocks:
    """Pairs of an M x N mask. Codes are row * width + column of blocks, sorted; `full` and `partial` share none."""

    m: int
    n: int
    full: Ints
    partial: Ints
    bits: Bits

    # ---- making --------------------------------------------------------------------------------------------------
    @staticmethod
    def none(m: int, n: int) -> Blocks:
        empty = np.zeros(0, np.int64)
        return Blocks(m, n, empty, empty, np.zeros((0, BLOCK, BLOCK // 8), np.uint8))

    @staticmethod
    def evaluated(codes: Ints, predicate: Predicate, m: int, n: int) -> Blocks:
        """The pairs of the blocks `codes` for which `predicate` holds."""
        width = _width(n)
        full, partial, bits = [], [], []
        for at in range(0, codes.size, BATCH):
            some = codes[at : at + BATCH]
            q = (some // width * BLOCK)[:, None, None] + OFFSETS[None, :, None]
            k = (some % width * BLOCK)[:, None, None] + OFFSETS[None, None, :]
            inside = (q < m) & (k < n)
            live = np.broadcast_to(predicate(np.minimum(q, m - 1), np.minimum(k, n - 1)), inside.shape) & inside
            whole = (live == inside).all(axis=(1, 2))
            some_live = live.any(axis=(1, 2)) & ~whole
            full.append(some[whole])
            partial.append(some[some_live])
            bits.append(np.packbits(live[some_live], axis=2))
        if not full:
            return Blocks.none(m, n)
        return Blocks(m, n, np.concatenate(full), np.concatenate(partial), np.concatenate(bits))

    @staticmethod
    def scan(predicate: Predicate, m: int, n: int, asked: str) -> Blocks:
        """Every pair looked at once, a strip of blocks at a time."""
        if m * n > MAX_SCAN:
            raise IrregularError(
                asked, f"it has no affine form, and {m} x {n} pairs are too many to look at one by one",
                "write the pattern as unions and intersections of library patterns, or use a shorter sequence",
            )  # fmt: skip
        codes = np.arange(-(-m // BLOCK) * _width(n), dtype=np.int64)
        return Blocks.evaluated(codes, predicate, m, n)

    @staticmethod
    def of_words(words: Ints, m: int, n: int) -> Blocks:
        """The pairs of words of BLOCK keys, the first in the lowest bit: (M, ceil(N / BLOCK)). What lies beyond N is
        not looked at.
        """
        inside = np.full((m, _width(n)), -1, np.int64)
        if n % BLOCK:
            inside[:, -1] = (1 << n % BLOCK) - 1
        live, whole = _by_block(words & inside), _by_block(inside)
        full, some = (live == whole).all(axis=1), live.any(axis=1)
        partial = np.flatnonzero(some & ~full)
        bits = BACKWARDS[live[partial].astype("<i8").view(np.uint8)].reshape(-1, BLOCK, BLOCK // 8)
        return Blocks(m, n, np.flatnonzero(full), partial, bits)

    @staticmethod
    def of_list(listed: BlockList, m: int, n: int) -> Blocks:
        """A list of blocks of any size."""
        rows, cols = listed.rows.array, listed.cols.array
        inside = (rows * listed.block_q < m) & (cols * listed.block_k < n)
        rows, cols = rows[inside], cols[inside]
        # A block that reaches the end, as only the first of its side does, costs what is inside alone.
        high, wide = (x if x < end else _width(end) * BLOCK for x, end in ((listed.block_q, m), (listed.block_k, n)))
        if high % BLOCK == 0 and wide % BLOCK == 0:
            none = Blocks.none(m, n)
            codes = _subdivided(rows, cols, (high // BLOCK, wide // BLOCK), m, n)
            return Blocks(m, n, codes, none.partial, none.bits)
        codes = _covering(rows * high, cols * wide, (high, wide), m, n)
        return Blocks.evaluated(codes, lambda q, k: listed.holds(q, k, _at(m, n)), m, n)

    @staticmethod
    def of_terms(terms: list[Term], m: int, n: int) -> Iterator[Blocks]:
        """The pairs of each term, one by one; looked at only once it is known that all together are not too many."""
        spans = [[x // BLOCK for x in (lo, hi + BLOCK - 1)] for lo, hi in (key_spans(term, m, n) for term in terms)]
        counts = [np.maximum(last - first, 0) for first, last in spans]
        if sum(int(x.sum()) for x in counts) * BLOCK * BLOCK > MAX_SCAN:
            raise IrregularError(
                f"{len(terms)} terms of {m} queries and {n} keys, pair by pair",
                "they reach too many pairs to be written down", "use fewer scattered parts, or a shorter sequence",
            )  # fmt: skip
        for term, (first, _), count in zip(terms, spans, counts, strict=True):
            rows = np.repeat(np.arange(count.size), count)
            cols = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count) + np.repeat(first, count)
            yield Blocks.evaluated(rows * _width(n) + cols, term.contains, m, n)

    @staticmethod
    def of_remainder(remainder: Remainder, m: int, n: int) -> Blocks:
        """The pairs of a finished remainder."""
        codes = remainder.rows.astype(np.int64) * _width(n) + remainder.cols
        whole = remainder.bit_index < 0
        return Blocks(m, n, codes[whole], codes[~whole], remainder.bits[remainder.bit_index[~whole]])

    # ---- algebra -------------------------------------------------------------------------------------------------
    def __len__(self) -> int:
        return int(self.full.size + self.partial.size)

    @property
    def codes(self) -> Ints:
        return _sorted(self.full, self.partial)

    def contains(self, q: Ints, k: Ints) -> NDBool:
        """True where the pair (q, k) is in; indices outside the mask are not."""
        inside = (q >= 0) & (q < self.m) & (k >= 0) & (k < self.n)
        q, k = np.where(inside, q, 0), np.where(inside, k, 0)
        codes = q // BLOCK * _width(self.n) + k // BLOCK
        live = _member(codes, self.full)
        if self.partial.size:
            place = np.minimum(np.searchsorted(self.partial, codes), self.partial.size - 1)
            byte = self.bits[place, q % BLOCK, k % BLOCK // 8]
            live |= (self.partial[place] == codes) & ((byte >> (7 - k % 8)) & 1).astype(np.bool_)
        return np.asarray(live & inside)

    def where(self, predicate: Predicate) -> Blocks:
        """The pairs for which `predicate` holds as well."""
        return Blocks.evaluated(self.codes, lambda q, k: self.contains(q, k) & predicate(q, k), self.m, self.n)

    def join(self, *others: Blocks) -> Blocks:
        """The pairs in any; bits are joined as they are, and no pair is looked at."""
        some = [x for x in (self, *others) if len(x)]
        if len(some) < 2:
            return some[0] if some else self
        full = _sorted(*(x.full for x in some))
        codes, bits = np.concatenate([x.partial for x in some]), np.concatenate([x.bits for x in some])
        order = np.argsort(codes, kind="stable")
        order = order[~_member(codes[order], full)]
        first = np.flatnonzero(np.diff(codes[order], prepend=-1))
        codes, bits = codes[order][first], np.bitwise_or.reduceat(bits[order], first)
        q, k = (x[:, None] * BLOCK + OFFSETS for x in np.divmod(codes, _width(self.n)))
        inside = (q < self.m)[:, :, None] * np.packbits(k < self.n, axis=1)[:, None, :]
        whole = (bits == inside).all(axis=(1, 2))
        return Blocks(self.m, self.n, _sorted(full, codes[whole]), codes[~whole], bits[~whole])

    def moved(self, dq: int, dk: int, m: int, n: int) -> Blocks:
        """The pairs moved by (dq, dk) into an m x n mask."""
        if (dq, dk, m, n) == (0, 0, self.m, self.n):
            return self
        rows, cols = np.divmod(self.codes, _width(self.n))
        codes = _covering(rows * BLOCK + dq, cols * BLOCK + dk, (BLOCK, BLOCK), m, n)
        return Blocks.evaluated(codes, lambda q, k: self.contains(q - dq, k - dk), m, n)

    def without(self, terms: Iterable[Term]) -> Blocks:
        """The pairs that no term has. Only blocks that a term reaches are looked at."""
        touched = [self._touched(term) for term in terms] if len(self) else []
        codes = _sorted(*touched)
        if not codes.size:
            return self

        def alone(q: Ints, k: Ints) -> NDBool:
            live = self.contains(q, k)
            for term in terms:
                live &= ~term.contains(q, k)
            return live

        cut = Blocks.evaluated(codes, alone, self.m, self.n)
        keep = ~_member(self.partial, codes)
        partial = np.concatenate([self.partial[keep], cut.partial])
        order = np.argsort(partial)
        bits = np.concatenate([self.bits[keep], cut.bits])[order]
        full = _sorted(self.full[~_member(self.full, codes)], cut.full)
        return Blocks(self.m, self.n, full, partial[order], bits)

    def _touched(self, term: Term) -> Ints:
        codes = self.codes
        rows, cols = np.divmod(codes, _width(self.n))
        lo, hi = key_spans(term, self.m, self.n)
        return codes[(cols * BLOCK < hi[rows]) & ((cols + 1) * BLOCK > lo[rows])]

    def first_pair(self) -> tuple[int, int]:
        """The first (query, key) of the first block; there is one."""
        row, col = divmod(int(self.codes[0]), _width(self.n))
        query, key = np.argwhere(self.contains(row * BLOCK + OFFSETS[:, None], col * BLOCK + OFFSETS[None, :]))[0]
        return row * BLOCK + int(query), col * BLOCK + int(key)

    def elsewhere(self, other: Blocks) -> Blocks:
        """The blocks of which `other` has nothing."""
        full, partial = (~_member(codes, other.codes) for codes in (self.full, self.partial))
        return Blocks(self.m, self.n, self.full[full], self.partial[partial], self.bits[partial])

    def reached_by(self, term: Term) -> Blocks:
        """The pairs that `term` has as well."""
        touched = self._touched(term)
        return Blocks.evaluated(touched, lambda q, k: self.contains(q, k) & term.contains(q, k), self.m, self.n)

    def samples(self, generator: np.random.Generator, count: int) -> Iterable[tuple[Ints, Ints]]:
        """Arrays of pairs in at most `count` of the blocks, 64 in each."""
        codes = self.codes
        if codes.size > count:
            codes = generator.choice(codes, count, replace=False)
        rows, cols = np.divmod(codes[:, None], _width(self.n))
        q, k = (x * BLOCK + generator.integers(0, BLOCK, size=(codes.size, BLOCK)) for x in (rows, cols))
        inside = (q < self.m) & (k < self.n)
        return [(q[inside], k[inside])]

    def remainder(self) -> Remainder:
        """The blocks as the final format."""
        codes = np.concatenate([self.full, self.partial])
        index = np.concatenate([np.full(self.full.size, -1, np.int32), np.arange(self.partial.size, dtype=np.int32)])
        if self.full.size and self.partial.size:
            order = np.argsort(codes, kind="stable")
            codes, index = codes[order], index[order]
        if not codes.size or codes[-1] < 1 << 31:  # shorter integers divide faster
            codes = codes.astype(np.int32)
        rows, cols = np.divmod(codes, _width(self.n))
        return Remainder(rows.astype(np.int32, copy=False), cols.astype(np.int32, copy=False), index, self.bits)


def key_spans(term: Term, m: int, n: int) -> tuple[Ints, Ints]:
    """For each strip of BLOCK queries, first and last + 1 key that the term may have there (lo >= hi: none)."""
    first = np.arange(0, m, BLOCK, dtype=np.int64)
    if term.is_ordered:
        return np.zeros_like(first), np.full_like(first, n)
    last = np.minimum(first + BLOCK, m) - 1
    outer = term.q.size // max(1, term.q.shape[0])
    top = np.clip((first - term.q.origin) // max(1, outer), 0, max(0, term.q.shape[0] - 1))
    bottom = np.clip((last - term.q.origin) // max(1, outer), 0, max(0, term.q.shape[0] - 1))
    lo, hi = term.axes[0].interval(top, term.k.shape[0])[0], term.axes[0].interval(bottom, term.k.shape[0])[1]
    inner = term.k.size // max(1, term.k.shape[0])
    reached = (last >= term.q.origin) & (first < term.q.origin + term.q.size)
    return term.k.origin + lo * inner, np.where(reached, term.k.origin + hi * inner, 0)


def _width(n: int) -> int:
    return max(1, -(-n // BLOCK))


def _by_block(words: Ints) -> Ints:
    """(blocks, BLOCK): the rows of each block, of those beyond the last one nothing."""
    m, width = words.shape
    blocks = -(-m // BLOCK)
    rows = np.concatenate([words, np.zeros((blocks * BLOCK - m, width), np.int64)])
    return rows.reshape(blocks, BLOCK, width).transpose(0, 2, 1).reshape(blocks * width, BLOCK)


def _at(m: int, n: int) -> Where:
    return Where(m, n)


def _sorted(*codes: Ints) -> Ints:
    """All codes in order, each once. (Sorting what is nearly sorted beats numpy's hashing unique here.)"""
    some = [x for x in codes if x.size]
    if not some:
        return np.zeros(0, np.int64)
    joined = np.sort(np.concatenate(some), kind="stable") if len(some) > 1 or (np.diff(some[0]) < 0).any() else some[0]
    first = np.ones(joined.size, np.bool_)
    np.not_equal(joined[1:], joined[:-1], out=first[1:])
    return joined if first.all() else joined[first]


def _subdivided(rows: Ints, cols: Ints, times: tuple[int, int], m: int, n: int) -> Ints:
    """Codes of blocks that are `times` blocks of BLOCK high and wide, those beyond the mask left out."""
    first = np.flatnonzero(np.diff(rows, prepend=-1))  # the list is in order of rows: each run of it, `down` times
    counts = np.repeat(np.diff(first, append=rows.size), times[0])
    begin = np.repeat(first, times[0]) - np.cumsum(counts) + counts
    which = np.arange(counts.sum()) + np.repeat(begin, counts)
    down = np.repeat(np.tile(np.arange(times[0]), first.size), counts)
    row, col = (rows[which] * times[0] + down)[:, None], cols[which, None] * times[1] + np.arange(times[1])
    codes = row * _width(n) + col
    if int(row.max(initial=0)) * BLOCK < m and int(col.max(initial=0)) * BLOCK < n:
        return codes.reshape(-1)
    return codes[(row * BLOCK < m) & (col * BLOCK < n)]


def _member(x: Ints, table: Ints) -> NDBool:
    if not table.size:
        return np.zeros(x.shape, np.bool_)
    return np.asarray(table[np.minimum(np.searchsorted(table, x), table.size - 1)] == x)


def _covering(q: Ints, k: Ints, size: tuple[int, int], m: int, n: int) -> Ints:
    """Codes of the blocks that the rectangles of `size` at (q, k) reach inside the m x n mask, without repetitions."""
    reach = [-(-length // BLOCK) + 1 for length in size]
    found = []
    for i in range(reach[0]):
        for j in range(reach[1]):
            row, col = q // BLOCK + i, k // BLOCK + j
            inside = (row >= 0) & (row * BLOCK < np.minimum(m, q + size[0]))
            inside &= (col >= 0) & (col * BLOCK < np.minimum(n, k + size[1]))
            found.append((row * _width(n) + col)[inside])
    return _sorted(*found)
