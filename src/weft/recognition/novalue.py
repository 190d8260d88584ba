"""Pairs where a function has no value: a division by zero, a logarithm of what has none, an index out of range.

numpy answers such an operation by a number and a warning, torch's floats by an infinity, torch's integers by an error.
None of these proves anything, so the function is refused with the place and the first such pair. An index below zero
counts from the end, as in torch and numpy. A function may ask for a value only where there is one. Then it branches on
it for single numbers (`k != 0 and q % k == 0`), or keeps the divisor away from zero (`q % k.clip(1)`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from weft.errors import InputError
from weft.outside import shown
from weft.tracing.place import place_of

NONZERO = "keep the divisor away from 0 (`x.clip(1)`, `torch.clamp(x, min=1)`), or write it without a division"
WITHIN = "keep the operand where the operation has a value, or write it without this operation"
IN_RANGE = "clip the index to the table, or make the table as long as the mask"
# Functions of torch whose value at some finite numbers is none.
PARTIAL = {
    "div", "true_divide", "divide", "__truediv__", "__rtruediv__", "__div__", "__rdiv__", "remainder", "fmod",
    "__mod__", "__rmod__", "floor_divide", "__floordiv__", "__rfloordiv__", "reciprocal", "rsqrt", "sqrt", "log",
    "log2", "log10", "log1p", "pow", "__pow__", "__rpow__",
}  # fmt: skip


class NoValue(ArithmeticError):
    """Internal: an operation has no value for its operands."""


class NoValueError(InputError):
    """A mask function has no value at some pair."""


@contextmanager
def strictly() -> Iterator[None]:
    """Operations of numpy without a value raise FloatingPointError."""
    with np.errstate(divide="raise", invalid="raise"):
        yield


def checked(name: str, found: Any, operands: tuple[Any, ...]) -> Any:
    """What a function of torch found. Raises NoValue where it is no number though all its operands are."""
    if name.rstrip("_") in PARTIAL or name in PARTIAL:
        floats = getattr(found, "is_floating_point", None)
        if floats is not None and floats() and not bool(found.isfinite().all()) and all(map(_finite, operands)):
            raise NoValue(f"torch's {name.strip('_')} has no finite value")
    return found


def _finite(x: Any) -> bool:
    if hasattr(x, "isfinite"):
        return bool(x.isfinite().all())
    return not isinstance(x, float) or math.isfinite(x)


def has_none(error: BaseException) -> bool:
    """Whether an error says that the function has no value, rather than that it is called in a wrong manner."""
    if isinstance(error, RuntimeError):
        return "ZeroDivisionError" in str(error)
    domain = isinstance(error, ValueError) and "math domain error" in str(error)
    return domain or (isinstance(error, ArithmeticError | IndexError) and not isinstance(error, OverflowError))


def refusal(asked: str, error: BaseException, pair: tuple[int, int] | None) -> NoValueError:
    """The error as the caller sees it. pair: (q, k), where it is known."""
    at = "" if pair is None else f" at q={pair[0]}, k={pair[1]}"
    beyond = isinstance(error, IndexError)
    divided = any(word in str(error).lower() for word in ("divi", "remainder"))
    what = "reads a table out of its range" if beyond else "divides by 0" if divided else "has no value"
    place = place_of(error).removesuffix(", ")
    wrong = f"it {what}{at}{', ' * bool(place)}{place}: {shown(error)}"
    return NoValueError(asked, wrong, IN_RANGE if beyond else NONZERO if divided else WITHIN)


def first_pair(call: Callable[[Any, Any], Any], queries: np.ndarray, keys: np.ndarray) -> tuple[int, int] | None:
    """A pair without a value among such queries and keys, halved until one is left; None where none fails alone."""
    while queries.size > 1 or keys.size > 1:
        by_queries = queries.size >= keys.size
        some = queries if by_queries else keys
        halves = (some[: some.size // 2], some[some.size // 2 :])
        pairs = [(half, keys) if by_queries else (queries, half) for half in halves]
        failing = next((pair for pair in pairs if _fails(call, *pair)), None)
        if failing is None:
            return None
        queries, keys = failing
    return (int(queries[0]), int(keys[0])) if _fails(call, queries, keys) else None


def _fails(call: Callable[[Any, Any], Any], queries: np.ndarray, keys: np.ndarray) -> bool:
    try:
        call(queries[:, None], keys[None])
    except MemoryError:
        raise
    except Exception as error:  # whatever the function raises
        return has_none(error)
    return False
