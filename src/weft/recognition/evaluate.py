"""Mask functions that cannot be traced: evaluated at given sizes, a strip of rows at a time, as packed bits."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from typing import Any

import numpy as np

from weft.errors import InputError
from weft.recognition import grouped, novalue, pace
from weft.recognition.bitrows import BitRows, width
from weft.recognition.tables import watched
from weft.recognition.tracer import Trace, Traced
from weft.tracing.capture import name_of

PAIRS_A_STRIP = 1 << 18  # pairs evaluated at once: what is made of them stays in a core's cache
MAX_SINGLE = 1 << 24  # pairs that are asked one by one
SAMPLES = {False: 64, True: 8}  # queries, and keys, at which every manner must answer alike: arrays, single numbers


@dataclass(frozen=True)
class Manner:
    """How a function wants its indices: as arrays of torch or numpy, or as single numbers."""

    torch: bool
    single: bool

    @property
    def text(self) -> str:
        library = "torch" if self.torch else "numpy"
        return f"single numbers of {library}" if self.single else f"arrays of {library}"

    def values(self, values: np.ndarray) -> Any:
        if not self.torch:
            return values.copy() if values.ndim else values[()]
        return sys.modules["torch"].from_numpy(values.copy()).as_subclass(_tensors()[0])

    def context(self) -> AbstractContextManager[Any]:
        """What the function is called in."""
        return nullcontext() if self.torch or "torch" not in sys.modules else _tensors()[1]()


def every_manner() -> list[Manner]:
    """Arrays first, those of torch first where it is loaded."""
    libraries = [True, False] if "torch" in sys.modules else [False]
    return [Manner(torch, single) for single, torch in product((False, True), libraries)]


def rows_of(function: Callable[..., Any], names: tuple[str, ...], at: dict[str, Any], m: int, n: int) -> BitRows:
    """The function on every pair, for one batch row and head: numbers, or traced values that tell when they are used.

    The manners that answer on a few pairs are tried in turn. What numpy and torch make of each other depends on sizes.
    A tensor of one element is an integer to numpy, and a comparison of numpy with a tensor comes back as numbers.
    """
    failures = []
    for manner in _manners(function, names, at, m, n):
        try:
            found = _rows(function, names, at, (m, n), manner)
        except (pace.TooSlowError, novalue.NoValueError):
            raise
        except InputError as error:
            failures.append(error)
            continue
        except MemoryError:  # the machine's
            raise
        except Exception as error:  # whatever the function raises
            failures.append(_raised(function, error))
            failures[-1].__cause__ = error
            continue
        _agreed(function, names, at, found, manner)
        return found
    raise failures[0]


def _agreed(
    function: Callable[..., Any], names: tuple[str, ...], at: dict[str, Any], found: BitRows, asked: Manner
) -> None:
    """Raise if another manner, arrays or single numbers of either library, answers otherwise at some pairs."""
    for manner in every_manner():
        q, k = (_samples(length, SAMPLES[manner.single]) for length in (found.m, found.n))
        mine = found.dense(q)[:, k]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of what is not used
                other = block(function, names, at, (q[:, None], k[None]), manner)
        except MemoryError:
            raise
        except Exception:  # it does not work in this manner, which nobody needs
            continue
        if (other != mine).any():
            i, j = (int(x[0]) for x in np.nonzero(other != mine))
            raise InputError(
                _asked(function),
                f"at q={q[i]}, k={k[j]} it answers {bool(mine[i, j])} to {asked.text} and {bool(other[i, j])} to "
                f"{manner.text}",
                "write it for one pair, with the functions of torch or of numpy but not of both",
            )  # fmt: skip


def _samples(length: int, most: int) -> np.ndarray:
    """Some indices, in no order."""
    return np.random.default_rng(length).choice(length, min(length, most), replace=False)


def _rows(
    function: Callable[..., Any], names: tuple[str, ...], at: dict[str, Any], size: tuple[int, int], manner: Manner
) -> BitRows:
    """A strip of rows at a time."""
    m, n = size
    if manner.single and m * n > MAX_SINGLE:
        raise InputError(
            _asked(function), f"it works on one pair at a time, and {m} x {n} of them are too many for that",
            "write its branches with torch.where or numpy.where, so that it takes arrays",
        )  # fmt: skip
    kinds = None if manner.single else _kinds(function, names, at, size, manner)
    if kinds is not None:
        first = [grouped.first_of(kind) for kind in kinds]
        pace.spare(m * n - first[0].size * first[1].size)
        return grouped.spread(_strips(function, names, at, first, manner).dense(), *kinds)
    return _strips(function, names, at, [np.arange(length, dtype=np.int64) for length in size], manner)


def _kinds(
    function: Callable[..., Any], names: tuple[str, ...], at: dict[str, Any], size: tuple[int, int], manner: Manner
) -> tuple[np.ndarray, np.ndarray] | None:
    """The kinds of queries and of keys, where few of them tell the whole mask."""
    fixed = {name: x if isinstance(x, Traced) else manner.values(np.asarray(x)) for name, x in at.items()}
    seen = watched(function)

    def call(q: Any, k: Any) -> Any:
        with manner.context(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a trial
            return seen(*({**fixed, "q": q, "k": k}[name] for name in names))

    return grouped.kinds(call, manner.values, *size)


def _strips(
    function: Callable[..., Any], names: tuple[str, ...], at: dict[str, Any], pairs: Sequence[Any], manner: Manner
) -> BitRows:
    """The answers for some queries and some keys, a strip of rows at a time."""
    queries, keys = pairs
    words = np.zeros((queries.size, width(keys.size)), np.uint64)
    step = max(1, PAIRS_A_STRIP // max(1, keys.size))
    for first in range(0, queries.size, step):
        some = queries[first : first + step]
        live = _valued(function, names, at, (some, keys), manner)
        words[first : first + step] = BitRows.pack(live).words
        pace.step(some.size * keys.size)
    return BitRows(words, keys.size)


def _valued(
    function: Callable[..., Any], names: tuple[str, ...], at: dict[str, Any], pairs: tuple[Any, Any], manner: Manner
) -> np.ndarray:
    """The answers of a strip. Raises NoValueError, with a pair, where the function has no value."""
    try:
        return block(function, names, at, (pairs[0][:, None], pairs[1][None]), manner)
    except (MemoryError, InputError):
        raise
    except Exception as error:  # whatever the function raises
        if not novalue.has_none(error):
            raise
        pair = novalue.first_pair(lambda q, k: block(function, names, at, (q, k), manner), *pairs)
        raise novalue.refusal(_asked(function), error, pair) from error


def _raised(function: Callable[..., Any], error: Exception) -> InputError:
    return InputError(
        _asked(function), f"it raises {type(error).__name__}: {error}", "see that it answers on arrays of indices"
    )


def _manners(function: Callable[..., Any], names: tuple[str, ...], at: dict[str, Any], m: int, n: int) -> list[Manner]:
    """The manners in which the function answers on a few pairs, pair by pair only if no other is. Its own error if
    there is none.
    """
    q, k = np.arange(min(m, 2), dtype=np.int64)[:, None], np.arange(min(n, 3), dtype=np.int64)[None]
    failures: list[Exception] = []
    found: list[Manner] = []
    for manner in every_manner():
        if manner.single and found and not found[0].single:
            return found
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of what does not work and is not used
                block(function, names, at, (q, k), manner)
            found.append(manner)
        except MemoryError:
            raise
        except Exception as error:  # whatever the function raises
            failures.append(error)
    if found:
        return found
    none = next((error for error in failures if novalue.has_none(error)), None)
    if none is not None:
        where = partial(_first_of, function, names, at)
        pair = next((pair for manner in every_manner() if (pair := where(q, k, manner)) is not None), None)
        raise novalue.refusal(_asked(function), none, pair) from none
    if isinstance(failures[0], InputError):
        raise failures[0]
    raise _raised(function, failures[0]) from failures[0]


def _first_of(
    function: Callable[..., Any], names: tuple[str, ...], at: dict[str, Any], q: Any, k: Any, manner: Manner
) -> tuple[int, int] | None:
    """The first pair without a value in one manner."""
    return novalue.first_pair(lambda i, j: block(function, names, at, (i, j), manner), q[:, 0], k[0])


def used_by(function: Callable[..., Any], names: tuple[str, ...]) -> dict[str, list[int]]:
    """Which of b and h the function looks at, each with the lengths of the tables that it indexes: seen on one pair."""
    trace = Trace()
    for torch in {False, "torch" in sys.modules}:
        pair = {name: Manner(torch, single=False).values(np.zeros((1, 1), np.int64)) for name in "qk"}
        watched = {name: trace.argument(name) for name in "bh"}
        with suppress(Exception), novalue.strictly():  # what it raises is said when it is evaluated
            function(*({**pair, **watched}[name] for name in names))
    return trace.used


def block(
    function: Callable[..., Any], names: tuple[str, ...], at: dict[str, Any], pairs: tuple[Any, Any], manner: Manner
) -> np.ndarray:
    """(rows, keys) booleans."""
    q, k = pairs
    if not manner.single:
        return _answer(function, names, {**at, "q": q, "k": k}, manner)
    out = np.empty((q.shape[0], k.shape[1]), np.bool_)
    for i, j in np.ndindex(*out.shape):
        given = {**at, "q": np.asarray(q[i, 0]), "k": np.asarray(k[0, j])}
        out[i, j] = _answer(function, names, given, manner)[()]
    return out


def _answer(function: Callable[..., Any], names: tuple[str, ...], given: dict[str, Any], manner: Manner) -> np.ndarray:
    """What the function returns, checked: booleans, for every pair, and its arguments as they were."""
    values = {name: np.asarray(x) for name, x in given.items() if not isinstance(x, Traced)}
    arguments = {name: manner.values(values[name]) if name in values else given[name] for name in names}
    with manner.context(), novalue.strictly():
        result = function(*arguments.values())
    for name, value in arguments.items():
        if name in values and not np.array_equal(np.asarray(value), values[name]):
            raise InputError(
                _asked(function), f"it changes its argument {name} in place", "write `x = x + 1`, not `x += 1`"
            )
    result = np.asarray(result)
    if result.dtype != np.bool_:
        raise InputError(*not_boolean(function, f"values of {result.dtype}"))
    shape = np.broadcast_shapes(values["q"].shape, values["k"].shape)
    try:
        return np.broadcast_to(result, shape)
    except ValueError:
        raise InputError(
            _asked(function), f"it returns an array of shape {result.shape} for pairs of shape {shape}",
            "return one boolean for each pair",
        ) from None  # fmt: skip


@cache
def _tensors() -> tuple[type[Any], type[Any]]:
    """Two classes that need torch: tensors that know what they may be compared with, and a context without torch."""
    torch = sys.modules["torch"]

    class Known(torch.Tensor):  # type: ignore[misc, name-defined]
        """Raises where Python would answer whether two things are one object: one boolean, and not what was asked."""

        __hash__ = torch.Tensor.__hash__

        @classmethod
        def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            found = super().__torch_function__(function, types, args, kwargs or {})
            return novalue.checked(getattr(function, "__name__", ""), found, args)

        def __eq__(self, other: Any) -> Any:
            return self._compared(super().__eq__(other), other)

        def __ne__(self, other: Any) -> Any:
            return self._compared(super().__ne__(other), other)

        def _compared(self, found: Any, other: Any) -> Any:
            if found is NotImplemented:
                raise RuntimeError(f"a tensor is compared with a {type(other).__name__}")
            return found

    class Without(torch.overrides.TorchFunctionMode):  # type: ignore[misc, name-defined]
        """A function that answers on numpy's arrays does so without torch, whose tensors do not know them."""

        def __torch_function__(self, called: Any, types: Any, args: Any = (), options: Any = None) -> Any:
            raise RuntimeError(f"torch's {called.__name__} is called for arrays of numpy")

    return Known, Without


def not_boolean(function: Callable[..., Any], what: str) -> tuple[str, str, str]:
    """The sentences for a function that returns something else."""
    return _asked(function), f"it returns {what}, not booleans", "return a comparison: True where q may see k"


def _asked(function: Callable[..., Any]) -> str:
    return f"recognize({name_of(function)})"
