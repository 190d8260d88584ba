"""Traced values in another dtype, and constants made beside them: `to`, `bool`, `new_ones`, `zeros_like`, ..."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.recognition.operations import LIMITS, cast, operand, operation, twin
from weft.recognition.tracer import Dtype, Trace, Traced, UntraceableError

TORCH = {"device", "non_blocking", "memory_format", "layout", "requires_grad", "pin_memory"}  # change no value
NUMPY = {"order", "subok", "casting"}


@operation("to", "type", "type_as")
def _to(trace: Trace, x: Any, *args: Any, copy: bool = False, **options: Any) -> Traced:
    """Another dtype; devices and the like change nothing."""
    name = _asked((*args, *(options.pop(name) for name in ("dtype", "other") if name in options)))
    _require_known(options, TORCH)
    if not args and not name:
        raise UntraceableError("a conversion to nothing")
    x = operand(trace, x)
    return cast(trace, x, name or x.kind) if copy else _converted(trace, x, name or x.kind)


@operation("astype")
def _astype(trace: Trace, x: Any, dtype: Any, *args: Any, copy: bool = True, **options: Any) -> Traced:
    """numpy's conversion, which makes a copy if it is not told otherwise."""
    _require_known(options, NUMPY)
    x, name = operand(trace, x), _dtype_name(dtype)
    if args or not name:
        raise UntraceableError("`astype` with these arguments")
    return cast(trace, x, name) if copy else _converted(trace, x, name)


def _converted(trace: Trace, x: Traced, dtype: str) -> Traced:
    """x itself if that is its dtype. A value said to have a narrow one may have a wider one, so that nobody knows."""
    if dtype == x.kind and dtype not in LIMITS:
        return x
    found = cast(trace, x, dtype)
    return twin(x, found) if x.kind in LIMITS and dtype != "bool" else found


def _asked(values: tuple[Any, ...]) -> str:
    """The first dtype among arguments; "" if there is none."""
    return next((name for name in map(_dtype_name, values) if name), "")


def _require_known(options: dict[str, Any], known: set[str]) -> None:
    if not set(options) <= known:
        raise UntraceableError(f"a conversion with {', '.join(sorted(set(options) - known))}")


def _dtype_name(value: Any) -> str:
    """ "bool", "int64", ... for a dtype of torch or numpy, its name, or what has one; "" for what is no dtype."""
    if isinstance(value, (Traced, Dtype)):
        return value.kind
    text = value if isinstance(value, str) else str(getattr(value, "dtype", value))
    if text.startswith("torch."):
        return text.removeprefix("torch.")
    if isinstance(value, (str, type, np.dtype)):
        try:
            return np.dtype(value).name
        except TypeError:  # a device
            return ""
    return text if hasattr(value, "dtype") else ""


@operation("bool")
def _bool(trace: Trace, x: Any) -> Traced:
    return _converted(trace, operand(trace, x), "bool")


@operation("long")
def _long(trace: Trace, x: Any) -> Traced:
    return _converted(trace, operand(trace, x), "int64")


@operation("int")
def _int(trace: Trace, x: Any) -> Traced:
    return _converted(trace, operand(trace, x), "int32")


# ---- constants: of what they are made beside, only the dtype matters -------------------------------------------------
def _constant(trace: Trace, x: Any, size: tuple[Any, ...], value: Any, dtype: Any, options: dict[str, Any]) -> Traced:
    """A value without axes, in x's dtype unless there is another."""
    axes = [*size, *(options.pop(name) for name in ("size", "shape") if name in options)]
    _require_known(options, TORCH | NUMPY)
    if not all(axis is None or axis == () or axis == [] for axis in axes):
        raise UntraceableError("a new array with axes")
    kind = x.kind if isinstance(x, Traced) else operand(trace, x).kind
    return cast(trace, operand(trace, value), kind if dtype is None else _dtype_name(dtype))


@operation("new_full")
def _new_full(trace: Trace, x: Any, size: Any, fill_value: Any, dtype: Any = None, **options: Any) -> Traced:
    return _constant(trace, x, (size,), fill_value, dtype, options)


@operation("full_like")
def _full_like(trace: Trace, x: Any, fill_value: Any, dtype: Any = None, **options: Any) -> Traced:
    return _constant(trace, x, (), fill_value, dtype, options)


@operation("new_ones")
def _new_ones(trace: Trace, x: Any, *size: Any, dtype: Any = None, **options: Any) -> Traced:
    return _constant(trace, x, size, 1, dtype, options)


@operation("new_zeros")
def _new_zeros(trace: Trace, x: Any, *size: Any, dtype: Any = None, **options: Any) -> Traced:
    return _constant(trace, x, size, 0, dtype, options)


@operation("ones_like")
def _ones_like(trace: Trace, x: Any, dtype: Any = None, **options: Any) -> Traced:
    return _constant(trace, x, (), 1, dtype, options)


@operation("zeros_like")
def _zeros_like(trace: Trace, x: Any, dtype: Any = None, **options: Any) -> Traced:
    return _constant(trace, x, (), 0, dtype, options)


@operation("new_tensor")
def _new_tensor(trace: Trace, x: Any, value: Any, dtype: Any = None, **options: Any) -> Traced:
    return _constant(trace, x, (), value, dtype, options)
