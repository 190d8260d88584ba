"""Boolean matrices as packed rows: one bit a pair, 64 keys a word, and the few questions recognition asks of them.

A row of N keys is ceil(N / 64) little-endian words; bit j of word w is key 64 w + j, bits beyond N are zero. All work
is on whole words, so that a matrix of 8192 x 8192 costs milliseconds a pass and an eighth of its boolean form.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import as_strided, sliding_window_view
from numpy.typing import NDArray

from weft.acsr.bits import bit_count
from weft.pattern.bounds import Ints
from weft.pattern.relation import NDBool

Words: TypeAlias = NDArray[np.uint64]
WORD = 64
STRIP = 1 << 22  # pairs looked at as bytes at a time
SMALL = 1 << 18  # pairs up to which bytes are quicker than words
FROM = np.array([(0xFFFFFFFFFFFFFFFF << x) & 0xFFFFFFFFFFFFFFFF for x in range(WORD + 1)], np.uint64)


@dataclass(frozen=True, eq=False)
class BitRows:
    """m rows of n bits: words has shape (m, ceil(n / 64))."""

    words: Words
    n: int

    # ---- making --------------------------------------------------------------------------------------------------
    @staticmethod
    def pack(mask: Any) -> BitRows:
        """A boolean (m, n) array, read a strip of rows at a time (it may be memory-mapped, with any strides)."""
        m, n = mask.shape
        words = np.zeros((m, width(n)), "<u8")
        for a, b in strips(m, n):
            raw = np.packbits(np.asarray(mask[a:b]).view(np.uint8), axis=1, bitorder="little")
            words.view(np.uint8)[a:b, : raw.shape[1]] = raw
        return BitRows(words, n)

    @staticmethod
    def of_keys(keys: NDBool, m: int) -> BitRows:
        """Every row is `keys`."""
        return BitRows(np.broadcast_to(packed(keys), (m, width(keys.size))), keys.size)

    @staticmethod
    def of_queries(queries: NDBool, n: int) -> BitRows:
        """Rows full where `queries` holds."""
        words = np.zeros((queries.size, width(n)), np.uint64)
        words[queries] = packed(np.ones(n, np.bool_))
        return BitRows(words, n)

    @staticmethod
    def of_diagonals(diagonals: NDBool, m: int, n: int) -> BitRows:
        """(q, k) is set where diagonals[k - q + m - 1] holds."""
        if m * (m + n) <= SMALL:
            return BitRows.pack(sliding_window_view(diagonals, n)[::-1])
        bits = np.concatenate([packed(diagonals), np.zeros(2, np.uint64)])
        out = np.empty((m, width(n)), np.uint64)
        for phase in range(min(WORD, m)):  # rows whose window begins at the same bit of a word
            rows = np.arange(phase, m, WORD)
            begin = m - 1 - rows
            shift = np.uint64(begin[0] % WORD)
            moved = bits[:-1] >> shift
            if shift:
                moved |= bits[1:] << np.uint64(WORD - shift)
            out[rows] = sliding_window_view(np.concatenate([moved, np.zeros(width(n), np.uint64)]), width(n))[
                begin // WORD
            ]
        return BitRows(out & packed(np.ones(n, np.bool_)), n)

    @staticmethod
    def of_intervals(lo: Ints, hi: Ints, n: int) -> BitRows:
        """Row i is keys lo[i] <= k < hi[i], cut at 0 and n."""
        lo = np.clip(lo, 0, n)
        hi = np.maximum(np.clip(hi, 0, n), lo)
        word = np.arange(width(n), dtype=np.int32)
        first, last = (np.asarray(x // WORD, np.int32) for x in (lo, hi))
        inside = (word >= first[:, None]) & (word < last[:, None])
        words = np.negative(inside.view(np.int8), dtype=np.int64).view(np.uint64)  # all ones where inside
        begins, ends = first < width(n), last < width(n)
        words[ends, last[ends]] = ~FROM[hi[ends] % WORD]  # also where a row begins and ends in one word
        words[begins, first[begins]] &= FROM[lo[begins] % WORD]
        return BitRows(words, n)

    # ---- algebra -------------------------------------------------------------------------------------------------
    @property
    def m(self) -> int:
        return self.words.shape[0]

    def __and__(self, other: BitRows) -> BitRows:
        return BitRows(self.words & other.words, self.n)

    def __or__(self, other: BitRows) -> BitRows:
        return BitRows(self.words | other.words, self.n)

    def without(self, other: BitRows) -> BitRows:
        return BitRows(self.words & ~other.words, self.n)

    @staticmethod
    def meet(parts: list[BitRows]) -> BitRows:
        """The pairs in all of some."""
        words = parts[0].words
        if len(parts) > 1:
            words = words & parts[1].words
            for other in parts[2:]:
                words &= other.words
        return BitRows(words, parts[0].n)

    @staticmethod
    def join(parts: list[BitRows]) -> BitRows:
        """The pairs in any of some."""
        words = parts[0].words
        if len(parts) > 1:
            words = words | parts[1].words
            for other in parts[2:]:
                words |= other.words
        return BitRows(words, parts[0].n)

    def inverted(self) -> BitRows:
        return BitRows(~self.words & packed(np.ones(self.n, np.bool_)), self.n)

    def same(self, other: BitRows) -> bool:
        return bool(np.array_equal(self.words, other.words))

    def meets(self, other: BitRows) -> bool:
        """Whether any pair is in both; asked of strips, so that a yes is often quick."""
        step = max(1, (1 << 16) // max(1, self.words.shape[1]))
        return any((self.words[a : a + step] & other.words[a : a + step]).any() for a in range(0, self.m, step))

    def exceeds(self, other: BitRows) -> bool:
        """Whether any pair is in this one alone; asked of strips as well."""
        step = max(1, (1 << 16) // max(1, self.words.shape[1]))
        return any((self.words[a : a + step] & ~other.words[a : a + step]).any() for a in range(0, self.m, step))

    @cached_property
    def some(self) -> bool:
        return bool(self.words.any())

    @cached_property
    def count(self) -> int:
        return int(bit_count(self.words).sum(dtype=np.int64))

    def row_counts(self) -> Ints:
        return np.asarray(bit_count(self.words).sum(axis=1, dtype=np.int64))

    # ---- projections ---------------------------------------------------------------------------------------------
    @cached_property
    def keys(self) -> NDBool:
        """Which keys some row has."""
        return unpacked(np.bitwise_or.reduce(self.words, axis=0), self.n)

    @cached_property
    def queries(self) -> NDBool:
        """Which rows have some key."""
        return np.asarray(self.words.any(axis=1))

    @cached_property
    def diagonals(self) -> NDBool:
        """Which differences k - q occur, at place k - q + m - 1."""
        m, w = self.words.shape
        if m * (m + self.n) <= SMALL:
            sheared8 = np.zeros((m, m + self.n), np.bool_)
            as_strided(sheared8[:, m - 1 :], (m, self.n), (sheared8.strides[0] - 1, 1))[:] = self.dense()
            return np.asarray(np.logical_or.reduce(sheared8, axis=0)[: m + self.n - 1])
        total = np.zeros(width(m + self.n - 1) + w + 2, np.uint64)
        for phase in range(min(WORD, m)):
            rows = self.words[phase::WORD]
            begin = m - 1 - phase - WORD * np.arange(rows.shape[0])
            shift = np.uint64(begin[0] % WORD)
            base = int(begin[-1]) // WORD
            sheared = np.zeros((rows.shape[0], w + 1 + rows.shape[0]), np.uint64)
            size = sheared.strides[0] - 8  # a word to the left in each next row
            place = as_strided(sheared[:, rows.shape[0] - 1 :], (rows.shape[0], w + 1), (size, 8))
            place[:, :w] = rows << shift
            if shift:
                place[:, 1:] |= rows >> np.uint64(WORD - shift)
            found = np.bitwise_or.reduce(sheared, axis=0)
            total[base : base + found.size] |= found[: total.size - base]
        return unpacked(total, m + self.n - 1)

    @cached_property
    def first(self) -> Ints:
        """The first key of each row, n where there is none."""
        found = self.words != 0
        word = found.argmax(axis=1)
        bit = _bits_of(np.take_along_axis(self.words, word[:, None], 1)).argmax(axis=1)
        return np.where(self.queries, word * WORD + bit, self.n)

    @cached_property
    def last(self) -> Ints:
        """The last key of each row, -1 where there is none."""
        found = self.words[:, ::-1] != 0
        word = self.words.shape[1] - 1 - found.argmax(axis=1)
        bit = WORD - 1 - _bits_of(np.take_along_axis(self.words, word[:, None], 1))[:, ::-1].argmax(axis=1)
        return np.where(self.queries, word * WORD + bit, -1)

    def next_key_differs(self) -> NDBool:
        """(n - 1): whether key k + 1 differs from key k in some row."""
        return _next_keys(self, self, np.bitwise_xor)

    def next_key_in(self, other: BitRows) -> NDBool:
        """(n - 1): whether some row has key k here and key k + 1 in the other."""
        return _next_keys(self, other, np.bitwise_and)

    # ---- reading -------------------------------------------------------------------------------------------------
    def dense(self, rows: Any = slice(None)) -> NDBool:
        """Some rows as booleans."""
        raw = np.ascontiguousarray(self.words[rows]).view(np.uint8)
        return np.unpackbits(raw, axis=1, count=self.n, bitorder="little").view(np.bool_)

    def transposed(self) -> BitRows:
        out = np.zeros((self.n, width(self.m)), np.uint64)
        step = max(WORD, STRIP // max(1, self.n) // WORD * WORD)
        for a in range(0, self.m, step):
            part = BitRows.pack(np.ascontiguousarray(self.dense(slice(a, a + step)).T))
            out[:, a // WORD : a // WORD + part.words.shape[1]] = part.words
        return BitRows(out, self.m)


def width(n: int) -> int:
    """Words for n bits."""
    return -(-n // WORD)


def strips(m: int, n: int) -> list[tuple[int, int]]:
    """(first, last + 1) of strips of rows of at most about STRIP pairs."""
    step = max(1, STRIP // max(1, n))
    return [(a, min(a + step, m)) for a in range(0, m, step)]


def _next_keys(rows: BitRows, other: BitRows, rule: Any) -> NDBool:
    """(n - 1): the rule on key k and key k + 1 of the other, in any row."""
    total = np.zeros(rows.words.shape[1], np.uint64)
    for a, b in strips(rows.m, rows.n):
        moved = other.words[a:b] >> np.uint64(1)
        moved[:, :-1] |= other.words[a:b, 1:] << np.uint64(WORD - 1)
        total |= np.bitwise_or.reduce(rule(rows.words[a:b], moved), axis=0)
    return unpacked(total, rows.n)[: max(0, rows.n - 1)]


def packed(bits: NDBool) -> Words:
    """A vector of booleans as words."""
    raw = np.zeros(width(bits.size) * 8, np.uint8)
    some = np.packbits(bits, bitorder="little")
    raw[: some.size] = some
    return raw.view("<u8")


def unpacked(words: Words, n: int) -> NDBool:
    return np.unpackbits(np.ascontiguousarray(words).view(np.uint8), count=n, bitorder="little").view(np.bool_)


def _bits_of(words: Words) -> NDArray[np.uint8]:
    """(r, 1) words as (r, 64) bits, bit 0 first."""
    return np.unpackbits(np.ascontiguousarray(words).view(np.uint8), axis=1, bitorder="little")
