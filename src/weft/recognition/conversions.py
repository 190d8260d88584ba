"""Traced values in another dtype, and constants made beside them: `to`, `bool`, `new_ones`, `zeros_like`, ..."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.pattern.bounds import INF
from weft.recognition.operations import LIMITS, operand, operation
from weft.recognition.tracer import Trace, Traced, UntraceableError, condition, number


@operation("to", "type", "astype", "type_as")
def _to(trace: Trace, x: Any, *args: Any, **options: Any) -> Traced:
    """Another dtype; devices and the like change nothing."""
    x = operand(trace, x)
    for value in (*args, *(options[name] for name in ("dtype", "other") if name in options)):
        name = _dtype_name(value)
        if name:
            return cast(trace, x, name)
    return x


def _dtype_name(value: Any) -> str:
    """ "bool", "int64", ... for a dtype of torch or numpy or a traced value; "" for what is no dtype."""
    if isinstance(value, Traced):
        return value.dtype or "int64"
    if str(value).startswith("torch."):
        return str(value).removeprefix("torch.")
    if isinstance(value, (type, np.dtype)):
        return np.dtype(value).name
    return ""


def cast(trace: Trace, x: Traced, dtype: str) -> Traced:
    if dtype == "bool":
        return Traced(trace, condition(x), "bool")
    if dtype != "int64" and dtype not in LIMITS:
        raise UntraceableError(f"a conversion to {dtype}")
    low, high = LIMITS.get(dtype, (-INF, INF))
    form = number(x)
    if any(value.extent[0] < low or value.extent[1] > high for _, value in form):
        raise UntraceableError(f"a conversion to {dtype} of what may not fit")
    return Traced(trace, form, dtype)


@operation("bool")
def _bool(trace: Trace, x: Any) -> Traced:
    return cast(trace, operand(trace, x), "bool")


@operation("long")
def _long(trace: Trace, x: Any) -> Traced:
    return cast(trace, operand(trace, x), "int64")


@operation("int")
def _int(trace: Trace, x: Any) -> Traced:
    return cast(trace, operand(trace, x), "int32")


@operation("new_full", "full_like")
def _filled(trace: Trace, x: Any, *args: Any, dtype: Any = None, **_: Any) -> Traced:
    """A constant without axes."""
    *size, value = args
    if any(tuple(s) for s in size):
        raise UntraceableError("a new array with axes")
    x = operand(trace, x)
    name = x.dtype if dtype is None else _dtype_name(dtype)
    return cast(trace, operand(trace, value), name or "int64")


@operation("new_ones", "ones_like")
def _ones(trace: Trace, x: Any, *size: Any, **options: Any) -> Traced:
    return _filled(trace, x, *size, 1, **options)


@operation("new_zeros", "zeros_like")
def _zeros(trace: Trace, x: Any, *size: Any, **options: Any) -> Traced:
    return _filled(trace, x, *size, 0, **options)


@operation("new_tensor")
def _tensor(trace: Trace, x: Any, value: Any, dtype: Any = None, **_: Any) -> Traced:
    return _filled(trace, x, value, dtype=dtype)
