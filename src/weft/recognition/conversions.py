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


@operation("new_full", "full_like")
def _filled(trace: Trace, x: Any, *args: Any, dtype: Any = None, **options: Any) -> Traced:
    """A constant without axes."""
    _require_known(options, TORCH | NUMPY)
    *size, value = args
    if any(tuple(s) for s in size):
        raise UntraceableError("a new array with axes")
    x = operand(trace, x)
    return cast(trace, operand(trace, value), x.kind if dtype is None else _dtype_name(dtype))


@operation("new_ones", "ones_like")
def _ones(trace: Trace, x: Any, *size: Any, **options: Any) -> Traced:
    return _filled(trace, x, *size, 1, **options)


@operation("new_zeros", "zeros_like")
def _zeros(trace: Trace, x: Any, *size: Any, **options: Any) -> Traced:
    return _filled(trace, x, *size, 0, **options)


@operation("new_tensor")
def _tensor(trace: Trace, x: Any, value: Any, dtype: Any = None, **_: Any) -> Traced:
    return _filled(trace, x, value, dtype=dtype)
