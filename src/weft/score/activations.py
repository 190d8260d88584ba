"""Functions of torch, numpy and jax.nn that a traced score knows, as made of its operations."""

from __future__ import annotations

import math
from typing import Any

from weft.score.operations import OPERATIONS, operation
from weft.score.tracer import Trace, UntraceableError, Value


class _Of:
    """Operations of one trace, by name."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    def __getattr__(self, name: str) -> Any:
        return lambda *args: OPERATIONS[name](self.trace, *args)


@operation("sigmoid", "expit", "logistic")
def _sigmoid(trace: Trace, x: Any) -> Value:
    """Never overflows."""
    do = _Of(trace)
    return do.add(0.5, do.mul(0.5, do.tanh(do.mul(0.5, x))))


@operation("silu", "swish")
def _silu(trace: Trace, x: Any, inplace: bool = False) -> Value:
    _check_place(inplace)
    return _Of(trace).mul(x, _sigmoid(trace, x))


def _check_place(inplace: bool) -> None:
    if inplace:
        raise UntraceableError("a function with inplace=True")


@operation("relu")
def _relu(trace: Trace, x: Any, inplace: bool = False) -> Value:
    _check_place(inplace)
    return _Of(trace).maximum(x, 0)


@operation("relu6")
def _relu6(trace: Trace, x: Any, inplace: bool = False) -> Value:
    _check_place(inplace)
    return _Of(trace).clamp(x, 0.0, 6.0)


@operation("leaky_relu")
def _leaky_relu(trace: Trace, x: Any, negative_slope: float = 0.01, inplace: bool = False) -> Value:
    _check_place(inplace)
    do = _Of(trace)
    return do.where(do.lt(0.0, x), x, do.mul(x, negative_slope))


@operation("elu")
def _elu(trace: Trace, x: Any, alpha: float = 1.0, inplace: bool = False) -> Value:
    _check_place(inplace)
    do = _Of(trace)
    return do.where(do.lt(0.0, x), x, do.mul(alpha, do.expm1(do.minimum(x, 0.0))))


@operation("hardtanh")
def _hardtanh(trace: Trace, x: Any, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Value:
    _check_place(inplace)
    return _Of(trace).clamp(x, min_val, max_val)


@operation("hardsigmoid")
def _hardsigmoid(trace: Trace, x: Any, inplace: bool = False) -> Value:
    _check_place(inplace)
    do = _Of(trace)
    return do.div(do.relu6(do.add(x, 3.0)), 6.0)


@operation("hardswish")
def _hardswish(trace: Trace, x: Any, inplace: bool = False) -> Value:
    _check_place(inplace)
    return _Of(trace).mul(x, _hardsigmoid(trace, x))


@operation("softplus")
def _softplus(trace: Trace, x: Any) -> Value:
    """log(1 + exp(x)), whose exponential never overflows."""
    do = _Of(trace)
    return do.add(do.relu(x), do.log1p(do.exp(do.neg(do.abs(x)))))


@operation("log_sigmoid")
def _log_sigmoid(trace: Trace, x: Any) -> Value:
    do = _Of(trace)
    return do.neg(_softplus(trace, do.neg(x)))


@operation("logaddexp")
def _logaddexp(trace: Trace, x: Any, y: Any) -> Value:
    do = _Of(trace)
    return do.add(y, _softplus(trace, do.sub(x, y)))


@operation("softsign")
def _softsign(trace: Trace, x: Any) -> Value:
    do = _Of(trace)
    return do.div(x, do.add(do.abs(x), 1.0))


@operation("tanhshrink")
def _tanhshrink(trace: Trace, x: Any) -> Value:
    do = _Of(trace)
    return do.sub(x, do.tanh(x))


@operation("mish")
def _mish(trace: Trace, x: Any, inplace: bool = False) -> Value:
    _check_place(inplace)
    do = _Of(trace)
    return do.mul(x, do.tanh(_softplus(trace, x)))


@operation("gelu")
def _gelu(trace: Trace, x: Any, approximate: str = "none") -> Value:
    do = _Of(trace)
    if approximate == "none":
        bend = do.erf(do.mul(x, math.sqrt(0.5)))
    elif approximate == "tanh":
        cubed = do.add(x, do.mul(0.044715, do.pow(x, 3)))
        bend = do.tanh(do.mul(math.sqrt(2 / math.pi), cubed))
    else:
        raise UntraceableError(f"`gelu` with approximate={approximate!r}")
    return do.mul(do.mul(0.5, x), do.add(1.0, bend))


# ---- of numbers ------------------------------------------------------------------------------------------------------
@operation("tan")
def _tan(trace: Trace, x: Any) -> Value:
    do = _Of(trace)
    return do.div(do.sin(x), do.cos(x))


@operation("cosh")
def _cosh(trace: Trace, x: Any) -> Value:
    do = _Of(trace)
    return do.mul(0.5, do.add(do.exp(x), do.exp(do.neg(x))))


@operation("sinh")
def _sinh(trace: Trace, x: Any) -> Value:
    """tanh(x) cosh(x), which keeps the digits of small numbers."""
    return _Of(trace).mul(_Of(trace).tanh(x), _cosh(trace, x))


@operation("frac")
def _frac(trace: Trace, x: Any) -> Value:
    do = _Of(trace)
    return do.sub(x, do.trunc(x))


@operation("round")
def _round(trace: Trace, x: Any) -> Value:
    """To the nearest integer; halves to the even one."""
    do = _Of(trace)
    above = do.floor(do.add(x, 0.5))
    odd = do.logical_and(do.eq(do.sub(above, x), 0.5), do.eq(do.remainder(above, 2.0), 1.0))
    return do.where(odd, do.sub(above, 1.0), above)


@operation("isinf")
def _isinf(trace: Trace, x: Any) -> Value:
    do = _Of(trace)
    return do.eq(do.abs(x), math.inf)


@operation("hypot")
def _hypot(trace: Trace, x: Any, y: Any) -> Value:
    do = _Of(trace)
    return do.sqrt(do.add(do.square(x), do.square(y)))


@operation("lerp")
def _lerp(trace: Trace, x: Any, end: Any, weight: Any) -> Value:
    do = _Of(trace)
    return do.add(x, do.mul(weight, do.sub(end, x)))


@operation("addcmul")
def _addcmul(trace: Trace, x: Any, y: Any, z: Any, value: Any = 1) -> Value:
    do = _Of(trace)
    return do.add(x, do.mul(value, do.mul(y, z)))


@operation("addcdiv")
def _addcdiv(trace: Trace, x: Any, y: Any, z: Any, value: Any = 1) -> Value:
    do = _Of(trace)
    return do.add(x, do.mul(value, do.div(y, z)))
