"""Functions that no rule takes, evaluated once for all queries that are alike, and for all keys.

A function is run on an index vector of all queries and one of all keys, which do not meet. What it makes of queries
alone, and of keys alone, is computed. Where the two meet, only the operation is looked at. If all operations go pair by
pair, the answer at a pair follows from what was made of its query and its key before. So queries of which all that is
the same are alike, and the function needs to be evaluated for one of each kind.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from weft.pattern.bounds import Ints
from weft.recognition.bitrows import BitRows, Words, packed, width
from weft.recognition.operations import OPERATIONS

LEAST = 1 << 20  # pairs from which on it is worth while to look
GAIN = 4  # times fewer pairs that have to be evaluated
MAX_LEAVES = 64
ROWS, KEYS = 2, 3  # of the sample that tells shapes and dtypes where queries and keys have met

# Operations of numpy and torch that answer pair by pair, beside those that the tracer knows.
PAIR_BY_PAIR = {
    "float", "double", "half", "sqrt", "square", "exp", "log", "log2", "sin", "cos", "floor", "ceil", "round", "trunc",
    "sign", "fmod", "hypot", "gcd", "lcm", "isfinite", "isnan", "reciprocal", "rsqrt", "true_divide", "xor",
}  # fmt: skip
CONSTANTS = ("new_ones", "new_zeros", "new_full", "new_tensor")
BINARY = ("add", "sub", "mul", "floordiv", "mod", "truediv", "pow", "and", "or", "xor", "rshift", "lshift")
COMPARED = ("lt", "le", "gt", "ge", "eq", "ne")


class GiveUp(Exception):
    """Internal: the function does something that need not go pair by pair."""


class Leaves:
    """What was made of queries alone, and of keys alone, where they met."""

    def __init__(self) -> None:
        self.found: dict[str, list[np.ndarray]] = {"q": [], "k": []}

    def add(self, value: Tracked) -> None:
        known = self.found[value.axis]
        vector = np.asarray(value.value).reshape(-1)
        if not any(vector.dtype == old.dtype and np.array_equal(vector, old) for old in known):
            known.append(vector)
        if len(known) > MAX_LEAVES:
            raise GiveUp


class Tracked:
    """A value over queries ("q"), over keys ("k"), or over pairs ("qk"), of which only a sample is known."""

    __slots__ = ("axis", "leaves", "sample", "value")

    def __init__(self, leaves: Leaves, axis: str, value: Any, sample: Any) -> None:
        self.leaves, self.axis, self.value, self.sample = leaves, axis, value, sample

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("shape", "size", "ndim", "numel", "item", "tolist", "numpy"):
            raise GiveUp
        found = getattr(self.sample, name)
        if not callable(found):
            return found
        return lambda *args, **options: apply(
            name, lambda x, *a, **o: getattr(x, name)(*a, **o), (self, *args), options
        )

    def __getitem__(self, index: Any) -> Any:
        raise GiveUp

    def __setitem__(self, index: Any, value: Any) -> None:
        raise GiveUp

    def read_from(self, table: Any, index: Any) -> Any:
        """table[index], asked by a table of numpy."""
        return apply("getitem", operator.getitem, (table, index), {})

    def __bool__(self) -> bool:
        raise GiveUp

    __index__ = __int__ = __float__ = __len__ = __iter__ = __array__ = __bool__
    __hash__ = None  # type: ignore[assignment]

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **options: Any) -> Any:
        if method != "__call__":
            raise GiveUp
        return apply(ufunc.__name__, ufunc, args, options)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        return apply(function.__name__, function, args, options)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return apply(getattr(function, "__name__", ""), function, args, kwargs or {})

    def __neg__(self) -> Any:
        return apply("neg", operator.neg, (self,), {})

    def __pos__(self) -> Any:
        return apply("positive", operator.pos, (self,), {})

    def __abs__(self) -> Any:
        return apply("abs", operator.abs, (self,), {})

    def __invert__(self) -> Any:
        return apply("invert", operator.invert, (self,), {})


def _binary(name: str, function: Callable[..., Any], *, reflected: bool = False) -> Callable[..., Any]:
    def call(self: Tracked, other: Any) -> Any:
        return apply(name, function, (other, self) if reflected else (self, other), {})

    return call


for _name in BINARY:
    _function = getattr(operator, {"and": "and_", "or": "or_"}.get(_name, _name))
    setattr(Tracked, f"__{_name}__", _binary(_name, _function))
    setattr(Tracked, f"__r{_name}__", _binary(_name, _function, reflected=True))
for _name in COMPARED:
    setattr(Tracked, f"__{_name}__", _binary(_name, getattr(operator, _name)))


def apply(name: str, function: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """One operation: computed on queries alone or keys alone, only looked at where they meet."""
    plain = name.strip("_")
    if (name.endswith("_") and not name.startswith("__")) or not (
        plain in OPERATIONS or plain in PAIR_BY_PAIR | {"xor"}
    ):
        raise GiveUp
    tracked = _tracked((args, tuple(options.values())))
    axis = "".join(sorted({x.axis for x in tracked}, reverse=True))
    axis = axis if axis in ("q", "k") else "qk"
    sample = function(*_real(args, whole=False), **_real(options, whole=False))
    if plain in CONSTANTS and getattr(sample, "ndim", None) == 0:
        return sample
    if getattr(sample, "shape", None) != {"q": (ROWS, 1), "k": (1, KEYS), "qk": (ROWS, KEYS)}[axis]:
        raise GiveUp
    leaves = tracked[0].leaves
    if axis != "qk":
        return Tracked(leaves, axis, function(*_real(args, whole=True), **_real(options, whole=True)), sample)
    for one in tracked:
        if one.axis != "qk":
            leaves.add(one)
    return Tracked(leaves, "qk", None, sample)


def _tracked(values: Any) -> list[Tracked]:
    if isinstance(values, Tracked):
        return [values]
    return [x for value in values for x in _tracked(value)] if isinstance(values, (tuple, list)) else []


def _real(values: Any, *, whole: bool) -> Any:
    """Arguments with arrays in place of what is tracked."""
    if isinstance(values, Tracked):
        return values.value if whole else values.sample
    if isinstance(values, (tuple, list)):
        return type(values)(_real(x, whole=whole) for x in values)
    return {key: _real(x, whole=whole) for key, x in values.items()} if isinstance(values, dict) else values


# ---- kinds of queries and of keys ------------------------------------------------------------------------------------
def kinds(call: Callable[[Any, Any], Any], made: Callable[[Ints], Any], m: int, n: int) -> tuple[Ints, Ints] | None:
    """The kind of each query and of each key, numbered from 0, for a function of two index arrays. None where it is not
    known to go pair by pair, or has too many kinds. made: an array of the function's library from one of numpy.
    """
    if m * n < LEAST or m < ROWS or n < KEYS:
        return None
    leaves = Leaves()
    sides = []
    for axis, length, some in (("q", m, ROWS), ("k", n, KEYS)):
        index = np.arange(length, dtype=np.int64)
        shape = (-1, 1) if axis == "q" else (1, -1)
        sides.append(Tracked(leaves, axis, made(index.reshape(shape)), made(index[:some].reshape(shape))))
    try:
        found = call(*sides)
    except Exception:  # it is evaluated on every pair, which says what is wrong
        return None
    if not isinstance(found, Tracked):
        return None
    if found.axis != "qk":
        leaves.add(found)
    queries, keys = _numbered(leaves.found["q"], m), _numbered(leaves.found["k"], n)
    return (queries, keys) if GAIN * (int(queries.max()) + 1) * (int(keys.max()) + 1) <= m * n else None


def _numbered(vectors: list[np.ndarray], length: int) -> Ints:
    """A number for each index, equal where all the vectors are."""
    found = np.zeros(length, np.int64)
    for vector in vectors:
        other = np.unique(vector, return_inverse=True)[1].reshape(-1)
        found = np.unique(found * (int(other.max(initial=0)) + 1) + other, return_inverse=True)[1].reshape(-1)
    return found


def first_of(kind: Ints) -> Ints:
    """The first index of each kind."""
    found = np.full(int(kind.max()) + 1, kind.size, np.int64)
    np.minimum.at(found, kind, np.arange(kind.size))
    return found


def spread(some: np.ndarray, queries: Ints, keys: Ints) -> BitRows:
    """The mask of all pairs from the answers for one query and one key of each kind."""
    rows = np.zeros((len(some), width(keys.size)), np.uint64)
    for row, live in zip(rows, some, strict=True):
        row[:] = packed(live[keys])
    words: Words = rows[queries]
    return BitRows(words, keys.size)
