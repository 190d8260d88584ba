"""The language of bounds: monotone staircases from query index to key index.

A relation between queries i and keys k is written as inequalities ``k >= T(i)`` and ``k < T(i)`` in which every T
never decreases. Two kinds of T are enough. `Stair` is a formula of eight integers, whatever the length of the
sequence. `Steps` is a table of the places where T jumps, for what has no formula (documents). Both are closed under
shift and under `adjoint`, which is what makes a relation transposable without ever looking at a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]

# Far beyond any token index, and small enough that sums of a few of them stay inside 64 bits.
INF = 1 << 50
PRINTED = 256  # entries of a table up to which its text lists all of them


def _saturate(value: int) -> int:
    return INF if value > INF // 2 else -INF if value < -(INF // 2) else value


class IntTable:
    """An immutable int64 vector that can be hashed and compared: what a pattern holds instead of a list."""

    __slots__ = ("_hash", "array")

    def __init__(self, values: object) -> None:
        self._take(np.array(values, dtype=np.int64).reshape(-1))

    @staticmethod
    def taking(values: Ints) -> IntTable:
        """A vector that nobody else will write to, as it is: a copy is new memory, which costs more than the rest."""
        found = object.__new__(IntTable)
        found._take(values)
        return found

    def _take(self, values: Ints) -> None:
        self.array: Ints = values
        self.array.setflags(write=False)
        self._hash: int | None = None  # of a long table it takes time, and most are never asked for it

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IntTable) and np.array_equal(self.array, other.array)

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(self.array.tobytes())
        return self._hash

    def __len__(self) -> int:
        return int(self.array.size)

    def __repr__(self) -> str:
        return repr(self.array.tolist())

    def __str__(self) -> str:
        """All entries of a short table; of a long one the first and the last, and how many there are."""
        if len(self) <= PRINTED:
            return repr(self)
        return f"[{', '.join(map(str, self.array[:3]))}, ..., {self.array[-1]}; {len(self)} in all]"

    def __reduce__(self) -> tuple[object, ...]:
        return (IntTable, (self.array,))


def coordinates(indices: Ints, shape: tuple[int, ...]) -> tuple[Ints, ...]:
    """Row-major indices as one array per axis.

    Not np.unravel_index: numpy 2.4 gives wrong entries for more than 8192 indices in an array whose last axis is 1.
    """
    found = []
    for size in reversed(shape[1:]):
        indices, last = np.divmod(indices, size)
        found.append(last)
    return (indices, *reversed(found))


@dataclass(frozen=True)
class Stair:
    """T(i) = clip(rise * floor((i + shift) / run) + base, out_lo, out_hi), -inf below in_lo and +inf from in_hi on.

    At each end at most one of the input threshold and the output clip is finite. This is what keeps the form closed
    under `adjoint`, which exchanges the two.
    """

    rise: int = 1
    run: int = 1
    shift: int = 0
    base: int = 0
    out_lo: int = -INF
    out_hi: int = INF
    in_lo: int = -INF
    in_hi: int = INF

    def __post_init__(self) -> None:
        if self.rise < 1 or self.run < 1:
            raise ValueError(f"a stair needs rise and run of at least 1, got {self}")
        # One spelling for one function: 0 <= shift < run, and 0 where a step is one index wide.
        whole, rest = divmod(self.shift, self.run)
        object.__setattr__(self, "shift", rest)
        object.__setattr__(self, "base", self.base + self.rise * whole)

    @staticmethod
    def constant(value: int) -> Stair:
        """T(i) = value."""
        return Stair(out_lo=value, out_hi=value)

    @staticmethod
    def threshold(row: int) -> Stair:
        """T(i) = -inf for i < row, +inf from there on: a statement about the query alone."""
        return Stair(in_lo=row, in_hi=row)

    @property
    def is_constant(self) -> bool:
        return self.out_lo == self.out_hi

    @property
    def is_threshold(self) -> bool:
        return self.in_lo == self.in_hi

    @property
    def nbytes(self) -> int:
        """Eight integers of 32 bits."""
        return 32

    def __call__(self, i: Ints) -> Ints:
        if self.is_constant:
            return np.full(i.shape, self.out_lo, np.int64)
        shifted = i + self.shift if self.shift else i
        value = shifted // self.run if self.run > 1 else shifted
        value = value * self.rise + self.base if self.rise > 1 else value + self.base
        if self.out_lo > -INF or self.out_hi < INF:
            value = np.clip(value, self.out_lo, self.out_hi)
        if self.in_lo > -INF:
            value = np.where(i < self.in_lo, -INF, value)
        if self.in_hi < INF:
            value = np.where(i >= self.in_hi, INF, value)
        return value

    def moved(self, dq: int, dk: int) -> Stair:
        """The stair of the same relation after queries move by dq and keys by dk: i -> T(i - dq) + dk."""
        out = [_saturate(x + dk) for x in (self.out_lo, self.out_hi)]
        into = [_saturate(x + dq) for x in (self.in_lo, self.in_hi)]
        return Stair(self.rise, self.run, self.shift - dq, self.base + dk, *out, *into)

    def adjoint(self) -> Stair:
        """k -> the first i with T(i) > k. So k >= T(i) is i < adjoint(k), and k < T(i) is i >= adjoint(k)."""
        out, into = (self.out_lo, self.out_hi), (self.in_lo, self.in_hi)
        return Stair(self.run, self.rise, -self.base, self.run - self.shift, *into, *out)

    def never_above(self, other: Bound) -> bool:
        """True if T(i) <= other(i) for every i can be read off the integers; False if that is not known."""
        if not isinstance(other, Stair):
            return False
        same = (self.out_lo, self.out_hi, self.in_lo, self.in_hi) == (
            other.out_lo, other.out_hi, other.in_lo, other.in_hi)  # fmt: skip
        if self.is_constant and other.is_constant:
            return self.out_lo <= other.out_lo
        if self.is_threshold and other.is_threshold:
            return self.in_lo >= other.in_lo
        if not same or (self.rise, self.run, self.shift) != (other.rise, other.run, other.shift):
            return False
        return self.base <= other.base


@dataclass(frozen=True)
class Steps:
    """T(i) = values[number of breaks <= i]: a non-decreasing step function kept as a table of its jumps."""

    breaks: IntTable
    values: IntTable

    def __post_init__(self) -> None:
        if len(self.values) != len(self.breaks) + 1:
            raise ValueError("a table of steps needs one value more than it has breaks")
        for table in (self.breaks, self.values):
            if (table.array[1:] < table.array[:-1]).any():
                raise ValueError("a table of steps must not decrease")

    @property
    def nbytes(self) -> int:
        """Both tables as 32-bit integers."""
        return 4 * (len(self.breaks) + len(self.values))

    def __call__(self, i: Ints) -> Ints:
        return self.values.array[np.searchsorted(self.breaks.array, i, side="right")]

    def moved(self, dq: int, dk: int) -> Steps:
        """See `Stair.moved`."""
        values = self.values.array + dk
        values = np.where(np.abs(self.values.array) >= INF // 2, self.values.array, values)
        breaks = np.where(np.abs(self.breaks.array) >= INF // 2, self.breaks.array, self.breaks.array + dq)
        return Steps(IntTable(breaks), IntTable(values))

    def adjoint(self) -> Steps:
        """See `Stair.adjoint`: breaks and values change places."""
        return Steps(self.values, IntTable(np.concatenate([[-INF], self.breaks.array, [INF]])))

    def never_above(self, other: Bound) -> bool:
        """See `Stair.never_above`."""
        return self == other


Bound: TypeAlias = Stair | Steps
