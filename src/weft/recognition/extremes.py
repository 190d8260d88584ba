"""The smaller, the larger and what lies between, as selections."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.recognition.operations import less, operand, operation, where
from weft.recognition.tracer import Trace, Traced, UntraceableError


@operation("minimum", "fmin")
def _minimum(trace: Trace, x: Any, y: Any) -> Traced:
    return where(trace, less(trace, x, y), x, y)


@operation("maximum", "fmax")
def _maximum(trace: Trace, x: Any, y: Any) -> Traced:
    return where(trace, less(trace, x, y), y, x)


@operation("min")
def _min(trace: Trace, x: Any, y: Any) -> Traced:
    return _minimum(trace, x, _no_axis(y))


@operation("max")
def _max(trace: Trace, x: Any, y: Any) -> Traced:
    return _maximum(trace, x, _no_axis(y))


def _no_axis(y: Any) -> Any:
    """The second operand of torch.min and torch.max; a plain number there is an axis."""
    if isinstance(y, (int, np.integer)):
        raise UntraceableError("a reduction along an axis")
    return y


@operation("clamp", "clip")
def _clamp(trace: Trace, x: Any, low: Any = None, high: Any = None, **options: Any) -> Traced:
    """min(max(x, low), high), as torch and numpy both have it."""
    names = {"min": low, "max": high, "a_min": None, "a_max": None, **options}
    if len(names) > 4:
        raise UntraceableError("`clip` with these arguments")
    low, high = (names[a] if names[a] is not None else names[b] for a, b in (("min", "a_min"), ("max", "a_max")))
    if low is None and high is None:
        raise UntraceableError("`clamp` without bounds")
    x = operand(trace, x)
    x = x if low is None else _maximum(trace, x, low)
    return x if high is None else _minimum(trace, x, high)


@operation("clamp_min")
def _clamp_min(trace: Trace, x: Any, low: Any) -> Traced:
    return _clamp(trace, x, low)


@operation("clamp_max")
def _clamp_max(trace: Trace, x: Any, high: Any) -> Traced:
    return _clamp(trace, x, None, high)
