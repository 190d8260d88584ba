"""The operations that a traced score knows, by the names that Python, numpy, torch and jax.numpy give them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from weft.score.expression import KINDS
from weft.score.tracer import Part, Trace, UntraceableError, Value

OPERATIONS: dict[str, Callable[..., Any]] = {}
IGNORED = {
    "device",
    "non_blocking",
    "memory_format",
    "layout",
    "requires_grad",
    "pin_memory",
    "copy",
}  # change no value
MOST = 64  # factors that a power is written out in


def operation(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enter a function under all its names."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        OPERATIONS.update(dict.fromkeys(names, function))
        return function

    return enter


def _binary(op: str) -> Callable[..., Value]:
    def rule(trace: Trace, x: Any, y: Any) -> Value:
        return trace.value(trace.build.binary(op, trace.number(x), trace.number(y)))

    return rule


def _unary(op: str) -> Callable[..., Value]:
    def rule(trace: Trace, x: Any) -> Value:
        return trace.value(trace.build.unary(op, trace.number(x)))

    return rule


for _op, _names in {
    "add": ("radd",), "mul": ("mul", "multiply", "rmul"), "min": ("minimum", "fmin"), "max": ("maximum", "fmax"),
    "lt": ("lt", "less"), "le": ("le", "less_equal"), "eq": ("eq", "equal"), "ne": ("ne", "not_equal"),
}.items():  # fmt: skip
    operation(*_names)(_binary(_op))
for _op, _names in {
    "neg": ("neg", "negative"), "abs": ("abs", "absolute", "fabs"), "exp": ("exp",), "log": ("log",),
    "tanh": ("tanh",), "sqrt": ("sqrt",), "sin": ("sin",), "cos": ("cos",), "erf": ("erf",), "floor": ("floor",),
}.items():  # fmt: skip
    operation(*_names)(_unary(_op))


# ---- arithmetic ------------------------------------------------------------------------------------------------------
@operation("add")
def _add(trace: Trace, x: Any, y: Any, alpha: Any = 1) -> Value:
    return trace.value(trace.build.binary("add", trace.number(x), _times(trace, y, alpha)))


@operation("sub", "subtract")
def _sub(trace: Trace, x: Any, y: Any, alpha: Any = 1) -> Value:
    x, y = trace.number(x), _times(trace, y, alpha)
    if trace.build.kind(x) == trace.build.kind(y) == "bool":
        raise UntraceableError("a difference of two booleans")
    return trace.value(trace.build.binary("sub", x, y))


def _times(trace: Trace, y: Any, alpha: Any) -> int:
    ref = trace.number(y)
    return ref if alpha == 1 else trace.build.binary("mul", ref, trace.number(alpha))


@operation("rsub")
def _rsub(trace: Trace, x: Any, y: Any) -> Value:
    return _sub(trace, y, x)


@operation("gt", "greater")
def _gt(trace: Trace, x: Any, y: Any) -> Any:
    return OPERATIONS["lt"](trace, y, x)


@operation("ge", "greater_equal")
def _ge(trace: Trace, x: Any, y: Any) -> Any:
    return OPERATIONS["le"](trace, y, x)


@operation("div", "divide", "true_divide", "truediv")
def _div(trace: Trace, x: Any, y: Any, rounding_mode: Any = None) -> Value:
    if rounding_mode == "floor":
        return _floor_divide(trace, x, y)
    if rounding_mode == "trunc":
        return _towards_zero(trace, x, y)
    if rounding_mode is not None:
        raise UntraceableError(f"a division with rounding_mode={rounding_mode!r}")
    return trace.value(trace.build.binary("div", trace.number(x), trace.number(y)))


@operation("floor_divide", "floordiv")
def _floor_divide(trace: Trace, x: Any, y: Any) -> Value:
    return _divided(trace, "floordiv", x, y)


@operation("rfloordiv")
def _rfloordiv(trace: Trace, x: Any, y: Any) -> Value:
    return _divided(trace, "floordiv", y, x)


@operation("remainder", "mod")
def _remainder(trace: Trace, x: Any, y: Any) -> Value:
    return _divided(trace, "mod", x, y)


@operation("rmod")
def _rmod(trace: Trace, x: Any, y: Any) -> Value:
    return _divided(trace, "mod", y, x)


def _divided(trace: Trace, op: str, x: Any, y: Any) -> Value:
    """x // y or x % y: of ints by a constant; of real numbers by way of floor."""
    build, x, y = trace.build, trace.number(x), trace.number(y)
    if "real" in (build.kind(x), build.kind(y)):
        whole = build.unary("floor", build.binary("div", x, y))
        return trace.value(whole if op == "floordiv" else build.binary("sub", x, build.binary("mul", whole, y)))
    constant = build.known(y)
    if constant is None:
        raise UntraceableError("a division of indices by what is not a constant")
    if constant == 0:
        raise UntraceableError("a division by 0")
    return trace.value(build.divided(op, x, y))


def _towards_zero(trace: Trace, x: Any, y: Any) -> Value:
    """x / y without its fraction: of ints by a constant, of real numbers by any."""
    whole = _floor_divide(trace, OPERATIONS["abs"](trace, x), OPERATIONS["abs"](trace, y))
    below = OPERATIONS["logical_xor"](trace, OPERATIONS["lt"](trace, x, 0), OPERATIONS["lt"](trace, y, 0))
    return where(trace, below, OPERATIONS["neg"](trace, whole), whole)


@operation("trunc", "fix")
def _trunc(trace: Trace, x: Any) -> Value:
    return _towards_zero(trace, x, 1)


@operation("fmod")
def _fmod(trace: Trace, x: Any, y: Any) -> Value:
    return _sub(trace, x, OPERATIONS["mul"](trace, _towards_zero(trace, x, y), y))


@operation("square")
def _square(trace: Trace, x: Any) -> Value:
    return _pow(trace, x, 2)


@operation("reciprocal")
def _reciprocal(trace: Trace, x: Any) -> Value:
    return _div(trace, 1.0, x)


@operation("rsqrt")
def _rsqrt(trace: Trace, x: Any) -> Value:
    return _div(trace, 1.0, OPERATIONS["sqrt"](trace, x))


@operation("pow", "power", "float_power")
def _pow(trace: Trace, x: Any, y: Any) -> Value:
    """x ** y of a constant y; or of a positive constant x."""
    build, x, y = trace.build, trace.number(x), trace.number(y)
    base, exponent = build.known(x), build.known(y)
    if exponent is not None:
        return trace.value(_power(trace, x, exponent))
    if base is None or base <= 0:
        raise UntraceableError("a power whose exponent is not a constant, and whose base is no positive one")
    return trace.value(build.unary("exp", build.binary("mul", y, build.const(math.log(base)))))


def _power(trace: Trace, x: int, exponent: float) -> int:
    build = trace.build
    if exponent == 0.5:
        return build.unary("sqrt", x)
    if exponent != int(exponent) or abs(exponent) > MOST:
        return build.unary("exp", build.binary("mul", build.const(float(exponent)), build.unary("log", x)))
    found, square, left = build.const(1), x, abs(int(exponent))
    while left:
        found = build.binary("mul", found, square) if left & 1 else found
        left >>= 1
        square = build.binary("mul", square, square) if left else square
    if exponent >= 0:
        return build.to("real", found) if isinstance(exponent, float) else found
    return build.binary("div", build.const(1.0), found)


# ---- functions -------------------------------------------------------------------------------------------------------
@operation("exp2")
def _exp2(trace: Trace, x: Any) -> Value:
    return _pow(trace, 2.0, x)


@operation("log2")
def _log2(trace: Trace, x: Any) -> Value:
    return _div(trace, OPERATIONS["log"](trace, x), math.log(2.0))


@operation("log10")
def _log10(trace: Trace, x: Any) -> Value:
    return _div(trace, OPERATIONS["log"](trace, x), math.log(10.0))


@operation("log1p")
def _log1p(trace: Trace, x: Any) -> Value:
    return OPERATIONS["log"](trace, OPERATIONS["add"](trace, x, 1.0))


@operation("expm1")
def _expm1(trace: Trace, x: Any) -> Value:
    return _sub(trace, OPERATIONS["exp"](trace, x), 1.0)


@operation("sign")
def _sign(trace: Trace, x: Any) -> Value:
    below = where(trace, OPERATIONS["lt"](trace, x, 0), -1, 0)
    return where(trace, OPERATIONS["lt"](trace, 0, x), 1, below)


@operation("ceil")
def _ceil(trace: Trace, x: Any) -> Value:
    return OPERATIONS["neg"](trace, OPERATIONS["floor"](trace, OPERATIONS["neg"](trace, x)))


@operation("clamp", "clip")
def _clamp(trace: Trace, x: Any, min: Any = None, max: Any = None, **options: Any) -> Value:
    low, high = options.pop("a_min", min), options.pop("a_max", max)
    if options:
        raise UntraceableError(f"`clamp` with {', '.join(options)}")
    x = x if low is None else OPERATIONS["maximum"](trace, x, low)
    return trace.value(trace.number(x if high is None else OPERATIONS["minimum"](trace, x, high)))


@operation("clamp_min")
def _clamp_min(trace: Trace, x: Any, min: Any) -> Value:
    return _clamp(trace, x, min)


@operation("clamp_max")
def _clamp_max(trace: Trace, x: Any, max: Any) -> Value:
    return _clamp(trace, x, None, max)


@operation("where")
def where(trace: Trace, test: Any, x: Any, y: Any) -> Value:
    return trace.value(trace.build.where(_truth(trace, test), trace.number(x), trace.number(y)))


@operation("masked_fill")
def _masked_fill(trace: Trace, x: Any, test: Any, value: Any) -> Value:
    return where(trace, test, value, x)


# ---- logic and bits --------------------------------------------------------------------------------------------------
def _truth(trace: Trace, x: Any) -> int:
    ref = trace.number(x)
    if trace.build.kind(ref) != "bool":
        raise UntraceableError("a condition made of numbers")
    return ref


def _logical(op: str) -> Callable[..., Value]:
    def rule(trace: Trace, x: Any, y: Any) -> Value:
        return trace.value(trace.build.binary(op, trace.number(x), trace.number(y)))

    return rule


for _op in ("and", "or", "xor"):
    operation(f"logical_{_op}")(_logical(_op))


@operation("logical_not")
def _not(trace: Trace, x: Any) -> Value:
    return trace.value(trace.build.unary("not", trace.number(x)))


@operation("bitwise_and", "and", "rand")
def _and(trace: Trace, x: Any, y: Any) -> Value:
    """On conditions both; on numbers x & (2**n - 1), which is x % 2**n."""
    build, x, y = trace.build, trace.number(x), trace.number(y)
    for a, b in ((x, y), (y, x)):
        ones = build.known(b) if build.kind(a) == build.kind(b) == "int" else None
        if ones is not None and ones > 0 and int(ones) & (int(ones) + 1) == 0:
            return trace.value(build.divided("mod", a, build.const(int(ones) + 1)))
    return trace.value(build.binary("and", _truth(trace, trace.value(x)), _truth(trace, trace.value(y))))


@operation("bitwise_or", "or", "ror")
def _or(trace: Trace, x: Any, y: Any) -> Value:
    return trace.value(trace.build.binary("or", _truth(trace, x), _truth(trace, y)))


@operation("bitwise_xor", "xor", "rxor")
def _xor(trace: Trace, x: Any, y: Any) -> Value:
    return trace.value(trace.build.binary("xor", _truth(trace, x), _truth(trace, y)))


@operation("bitwise_not", "invert")
def _invert(trace: Trace, x: Any) -> Value:
    """On a condition its complement; on a number -x - 1."""
    if trace.build.kind(trace.number(x)) != "bool":
        return _sub(trace, -1, x)
    return _not(trace, x)


@operation("right_shift", "bitwise_right_shift", "rshift")
def _right_shift(trace: Trace, x: Any, y: Any) -> Value:
    return _floor_divide(trace, x, 1 << _bits(trace, y))


@operation("left_shift", "bitwise_left_shift", "lshift")
def _left_shift(trace: Trace, x: Any, y: Any) -> Any:
    return OPERATIONS["mul"](trace, x, 1 << _bits(trace, y))


def _bits(trace: Trace, y: Any) -> int:
    count = trace.build.known(trace.number(y))
    if not isinstance(count, int) or not 0 <= count <= 30:
        raise UntraceableError("a shift of bits by what is not a small constant")
    return count


# ---- conversions and constants ---------------------------------------------------------------------------------------
@operation("positive", "clone", "contiguous", "squeeze")
def _same(trace: Trace, x: Any, **options: Any) -> Value:
    return trace.value(trace.number(x))


@operation("detach", "stop_gradient")
def _detach(trace: Trace, x: Any) -> Value:
    raise UntraceableError("`detach`, since every gradient of a score flows")


@operation("to", "type", "astype", "type_as")
def _to(trace: Trace, x: Any, *args: Any, **options: Any) -> Value:
    """Another dtype; devices and the like change nothing."""
    asked = [
        kind for one in (*args, *(options.pop(n) for n in ("dtype", "other") if n in options)) if (kind := kind_of(one))
    ]
    if not set(options) <= IGNORED:
        raise UntraceableError(f"a conversion with {', '.join(sorted(set(options) - IGNORED))}")
    ref = trace.number(x)
    return trace.value(trace.build.to(asked[0], ref) if asked else ref)


def kind_of(dtype: Any) -> str:
    """The kind of a dtype of Python, numpy or torch, or of what has one; "" of anything else."""
    if isinstance(dtype, Value):
        return dtype.kind
    if dtype in (bool, int, float):
        return {bool: "bool", int: "int", float: "real"}[dtype]
    text = str(getattr(dtype, "dtype", None) or dtype).removeprefix("torch.").strip("<>").removeprefix("class ")
    text = text.strip("'\"").rpartition(".")[2]
    if text in ("float16", "bfloat16", "half"):
        raise UntraceableError(f"a conversion to {text}, which would take digits off")
    for prefix, kind in (
        ("float", "real"),
        ("double", "real"),
        ("int", "int"),
        ("uint", "int"),
        ("long", "int"),
        ("bool", "bool"),
    ):
        if text.startswith(prefix):
            return kind
    return ""


for _kind, _names in {"real": ("float", "double"), "int": ("int", "long"), "bool": ("bool",)}.items():
    for _name in _names:
        operation(_name)(lambda trace, x, kind=_kind: trace.value(trace.build.to(kind, trace.number(x))))


def _constant(trace: Trace, x: Any, value: Any, size: Any, options: dict[str, Any]) -> Value:
    """A number in the kind of x, unless a dtype is given."""
    if size not in ((), [], None):
        raise UntraceableError("a new array with axes")
    kind = kind_of(options.pop("dtype")) if options.get("dtype") is not None else trace.build.kind(trace.number(x))
    if not set(options) <= IGNORED | {"dtype", "shape"}:
        raise UntraceableError(f"a constant with {', '.join(sorted(options))}")
    return trace.value(trace.build.to(kind if kind in KINDS else "real", trace.number(value)))


@operation("full_like")
def _full_like(trace: Trace, x: Any, fill_value: Any, **options: Any) -> Value:
    return _constant(trace, x, fill_value, (), options)


@operation("zeros_like")
def _zeros_like(trace: Trace, x: Any, **options: Any) -> Value:
    return _constant(trace, x, 0, (), options)


@operation("ones_like")
def _ones_like(trace: Trace, x: Any, **options: Any) -> Value:
    return _constant(trace, x, 1, (), options)


@operation("new_full")
def _new_full(trace: Trace, x: Any, size: Any, fill_value: Any, **options: Any) -> Value:
    return _constant(trace, x, fill_value, size, options)


@operation("new_zeros")
def _new_zeros(trace: Trace, x: Any, size: Any = (), **options: Any) -> Value:
    return _constant(trace, x, 0, size, options)


@operation("new_ones")
def _new_ones(trace: Trace, x: Any, size: Any = (), **options: Any) -> Value:
    return _constant(trace, x, 1, size, options)


@operation("new_tensor")
def _new_tensor(trace: Trace, x: Any, value: Any, **options: Any) -> Value:
    return _constant(trace, x, value, (), options)


# ---- tables ----------------------------------------------------------------------------------------------------------
@operation("getitem", "take")
def _getitem(trace: Trace, table: Any, index: Any) -> Value | Part:
    if isinstance(table, Value):
        if index is ... or index == ():
            return table
        raise UntraceableError("an index into what is no table")
    return (table if isinstance(table, Part) else Part(trace, table)).at(index)
