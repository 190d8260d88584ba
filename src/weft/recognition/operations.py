"""The operations that a traced value knows, by the names that Python, numpy and torch give them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from weft.pattern.bounds import INF
from weft.recognition import forms
from weft.recognition.forms import NEGATIVE, ZERO, Number
from weft.recognition.lines import Line
from weft.recognition.novalue import NoValue
from weft.recognition.periodic import LARGEST
from weft.recognition.tracer import Trace, Traced, UntraceableError, beside, condition, known, note, number
from weft.tracing.answering import flat

LIMITS = {"uint8": (0, 255), "int8": (-128, 127), "int16": (-(1 << 15), (1 << 15) - 1),
          "uint16": (0, (1 << 16) - 1), "int32": (-(1 << 31), (1 << 31) - 1), "uint32": (0, (1 << 32) - 1),
          "uint64": (0, INF)}  # fmt: skip
AUGMENTED = {f"__i{name}__" for name in ("add", "sub", "mul", "floordiv", "mod", "truediv", "pow", "matmul",
                                         "and", "or", "xor", "lshift", "rshift")}  # fmt: skip
OPERATIONS: dict[str, Callable[..., Any]] = {}


def perform(trace: Trace, name: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """The operation of that name; UntraceableError if there is none, or not with these arguments."""
    in_place = name in AUGMENTED or (name.endswith("_") and not name.startswith("__"))
    try:
        if "out" in options:
            raise UntraceableError(f"`{name}` with out=")
        return (_changed if in_place else _result)(trace, name, args, options)
    except UntraceableError:
        _look_at(args, options)
        raise


def _changed(trace: Trace, name: str, args: tuple[Any, ...], options: dict[str, Any]) -> Traced:
    """The first operand, which is from now on what comes of the operation, in the dtype that it has."""
    x = args[0]
    if not isinstance(x, Traced):  # later reads of a real array would not see the change
        raise UntraceableError(f"`{name}` on what depends on no index")
    x.forbid_change()
    found = _result(trace, name, args, options)
    if x.is_condition and not found.is_condition:
        raise UntraceableError(f"`{name}`, which writes numbers into a condition")
    return x.become(found if found.kind == x.kind else cast(trace, found, x.kind))


def _result(trace: Trace, name: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    function = function_of(name)
    if function is None:
        raise UntraceableError(f"`{name}`")
    try:
        return function(trace, *args, **options)
    except TypeError as error:
        raise UntraceableError(f"`{name}` with these arguments ({error})") from None


def function_of(name: str) -> Callable[..., Any] | None:
    """The operation that a function or a method of that name is, in place or not."""
    plain = name.strip("_")
    return OPERATIONS.get(plain.removeprefix("i") if name in AUGMENTED else plain)


def _look_at(args: tuple[Any, ...], options: dict[str, Any]) -> None:
    """What an operation could not be done with still matters."""
    for x in flat((*args, *options.values())):
        if isinstance(x, Traced):
            note(x)


def operation(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enter a function under all its names."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        OPERATIONS.update(dict.fromkeys(names, function))
        return function

    return enter


# ---- operands -------------------------------------------------------------------------------------------------------
def operand(trace: Trace, x: Any) -> Traced:
    """A traced value, or what stands beside one: an int, a bool, an array or tensor of one element."""
    if isinstance(x, Traced):
        note(x)
        return x
    if isinstance(x, (bool, np.bool_)):
        return Traced(trace, forms.Always(bool(x)), "bool")
    if isinstance(x, int):
        return Traced(trace, trace.constant(modest(x)), "")
    array = as_table(x)
    if array is None or array.size != 1:
        what = f"an array of {array.size} numbers" if array is not None else f"a {type(x).__name__}"
        raise UntraceableError(f"an operation with {what}")
    value = array.reshape(-1)[0]
    if array.dtype == np.bool_:
        return Traced(trace, forms.Always(bool(value)), "bool")
    return Traced(trace, trace.constant(modest(int(value))), str(array.dtype))


def as_table(x: Any) -> Any:
    """A numpy or torch array of booleans or integers as a numpy array; None for anything else."""
    if hasattr(x, "detach") and hasattr(x, "cpu"):
        x = x.detach().cpu().numpy()
    if isinstance(x, (np.ndarray, np.generic)):
        array = np.asarray(x)
        return array if array.dtype == np.bool_ or array.dtype.kind in "iu" else None
    return None


def modest(value: int) -> int:
    if abs(value) > LARGEST:
        raise UntraceableError(f"an operation with {value}, which is beyond any index,")
    return value


def together(trace: Trace, *values: Any) -> list[Traced]:
    """Operands of one operation. A constant beyond a narrow dtype may wrap in one library and not in another."""
    found = [operand(trace, x) for x in beside(values)]
    low, high = LIMITS.get(_dtype(tuple(found)), (-INF, INF))
    for x in found:
        if not low <= (known(x) or 0) <= high:
            raise UntraceableError(f"an operation of {_dtype(tuple(found))} with {known(x)}")
    return found


def _dtype(values: tuple[Traced, ...]) -> str:
    """The narrowest dtype the result may have. torch and numpy may take a wider one; what fits here fits there."""
    if any(x.kind == "int64" and known(x) is None for x in values):
        return "int64"
    narrow = [x.kind for x in values if x.kind in LIMITS]
    return min(narrow, key=lambda name: LIMITS[name][1]) if narrow else "int64"


def _fitting(trace: Trace, form: Number, *values: Traced) -> Traced:
    """A result of arithmetic, if it cannot leave its dtype."""
    dtype = _dtype(values)
    low, high = LIMITS.get(dtype, (-INF, INF))
    for _, value in form if dtype in LIMITS else ():
        least, most = value.extent
        if least < low or most > high:
            raise UntraceableError(f"arithmetic that may leave {dtype}")
    return Traced(trace, form, dtype)


def cast(trace: Trace, x: Traced, dtype: str) -> Traced:
    """A copy in another dtype, if it fits."""
    if dtype == "bool":
        return Traced(trace, condition(x), "bool")
    if dtype != "int64" and dtype not in LIMITS:
        raise UntraceableError(f"a conversion to {dtype}")
    low, high = LIMITS.get(dtype, (-INF, INF))
    form = number(x)
    if any(value.extent[0] < low or value.extent[1] > high for _, value in form):
        raise UntraceableError(f"a conversion to {dtype} of what may not fit")
    return Traced(trace, form, dtype)


# ---- arithmetic -----------------------------------------------------------------------------------------------------
@operation("add", "radd")
def _add(trace: Trace, x: Any, y: Any) -> Traced:
    x, y = together(trace, x, y)
    if x.is_condition and y.is_condition:
        return _or(trace, x, y)
    return _fitting(trace, forms.each(number(x), number(y), forms.added), x, y)


@operation("sub", "subtract")
def _sub(trace: Trace, x: Any, y: Any) -> Traced:
    x, y = together(trace, x, y)
    if x.is_condition and y.is_condition:
        raise UntraceableError("a difference of two booleans")
    form = forms.each(number(x), forms.each(number(y), trace.constant(-1), forms.multiplied), forms.added)
    return _fitting(trace, form, x, y)


@operation("rsub")
def _rsub(trace: Trace, x: Any, y: Any) -> Traced:
    return _sub(trace, y, x)


@operation("mul", "multiply", "rmul")
def _mul(trace: Trace, x: Any, y: Any) -> Traced:
    x, y = together(trace, x, y)
    if x.is_condition and y.is_condition:
        return _and(trace, x, y)
    for a, b in ((x, y), (y, x)):
        if a.is_condition:  # c * y is y where c holds, else 0
            return Traced(trace, forms.where(condition(a), number(b), trace.constant(0)), b.kind or "int64")
    return _fitting(trace, forms.each(number(x), number(y), forms.multiplied), x, y)


@operation("neg", "negative")
def _neg(trace: Trace, x: Any) -> Traced:
    return _sub(trace, 0, x)


@operation("contiguous", "detach")
def _same(trace: Trace, x: Any) -> Traced:
    """The same memory, so what changes it in place changes x."""
    return operand(trace, x)


@operation("clone", "copy")
def _copy(trace: Trace, x: Any) -> Traced:
    x = operand(trace, x)
    return Traced(trace, x.form, x.kind)


@operation("positive")
def _positive(trace: Trace, x: Any) -> Traced:
    """Of torch it is x itself, of numpy a copy."""
    x = operand(trace, x)
    return twin(x, _copy(trace, x))


def twin(x: Traced, copy: Traced) -> Traced:
    """The copy, which may also be x itself."""
    x.twins = x.twins or [x]
    x.twins.append(copy)
    copy.twins = x.twins
    return copy


@operation("floor_divide", "floordiv")
def _floor_divide(trace: Trace, x: Any, y: Any) -> Traced:
    """x // c; for c < 0 it is (-x) // -c."""
    (x, _), c = together(trace, x, y), _divisor(trace, y)
    form = number(x) if c > 0 else number(_neg(trace, x))
    return Traced(trace, forms.mapped(Line.floor(abs(c)), form), _of_division(x))


@operation("rfloordiv")
def _rfloordiv(trace: Trace, x: Any, y: Any) -> Traced:
    return _floor_divide(trace, y, x)


@operation("remainder", "mod")
def _remainder(trace: Trace, x: Any, y: Any) -> Traced:
    """x % c, of the sign of c; for c < 0 it is -((-x) % -c)."""
    (x, _), c = together(trace, x, y), _divisor(trace, y)
    form = forms.mapped(Line.modulo(abs(c)), number(x) if c > 0 else number(_neg(trace, x)))
    found = Traced(trace, form, _of_division(x))
    return found if c > 0 else _neg(trace, found)


@operation("rmod")
def _rmod(trace: Trace, x: Any, y: Any) -> Traced:
    return _remainder(trace, y, x)


@operation("div", "divide", "true_divide", "truediv")
def _div(trace: Trace, x: Any, y: Any, rounding_mode: Any = None) -> Traced:
    if rounding_mode != "floor":
        raise UntraceableError("a division that is not rounded down (write `//`)")
    return _floor_divide(trace, x, y)


def _divisor(trace: Trace, y: Any) -> int:
    y = operand(trace, y)
    c = known(y)
    if y.is_condition:  # its result is narrower in one library than in another
        raise UntraceableError("a division by a condition")
    if c == 0:
        raise NoValue("a division by 0")
    if c is None:
        raise UntraceableError("a division by what is not the same for all pairs")
    return c


def _of_division(x: Traced) -> str:
    """The dtype of x // c and x % c, which is a number where x is a condition too."""
    return "int64" if x.is_condition else x.kind or "int64"


@operation("right_shift", "bitwise_right_shift", "rshift")
def _right_shift(trace: Trace, x: Any, y: Any) -> Traced:
    return _floor_divide(trace, x, 1 << _bits(trace, y))


@operation("left_shift", "bitwise_left_shift", "lshift")
def _left_shift(trace: Trace, x: Any, y: Any) -> Traced:
    return _mul(trace, x, 1 << _bits(trace, y))


def _bits(trace: Trace, y: Any) -> int:
    count = known(operand(trace, y))
    if count is None or not 0 <= count <= 30:
        raise UntraceableError("a shift of bits by what is not a small number, the same for all pairs,")
    return count


@operation("pow", "power")
def _pow(trace: Trace, x: Any, y: Any) -> Traced:
    """Of numbers that are the same for all pairs, such as 2 ** h."""
    x, y = together(trace, x, y)
    base, exponent = known(x), known(y)
    if base is None or exponent is None or not 0 <= exponent < 64 or x.is_condition or y.is_condition:
        raise UntraceableError("a power")
    return _fitting(trace, trace.constant(modest(base**exponent)), x, y)


@operation("abs", "absolute")
def _abs(trace: Trace, x: Any) -> Traced:
    x = operand(trace, x)
    return _copy(trace, x) if x.is_condition else where(trace, less(trace, x, 0), _neg(trace, x), x)


@operation("where")
def where(trace: Trace, test: Any, x: Any, y: Any) -> Traced:
    test, (x, y) = operand(trace, test), together(trace, x, y)
    if not test.is_condition:
        raise UntraceableError("`where` on numbers")
    if x.is_condition and y.is_condition:
        return _or(trace, _and(trace, test, x), _and(trace, _not(trace, test), y))
    return Traced(trace, forms.where(condition(test), number(x), number(y)), _dtype((x, y)))


# ---- comparisons ----------------------------------------------------------------------------------------------------
def _compared(trace: Trace, x: Any, y: Any, test: Line) -> Traced:
    x, y = together(trace, x, y)
    return Traced(trace, forms.compared(number(x), number(y), test), "bool")


@operation("lt", "less")
def less(trace: Trace, x: Any, y: Any) -> Traced:
    return _compared(trace, x, y, NEGATIVE)


@operation("le", "less_equal")
def _le(trace: Trace, x: Any, y: Any) -> Traced:
    return _compared(trace, x, y, Line.between(-INF, 1))


@operation("gt", "greater")
def _gt(trace: Trace, x: Any, y: Any) -> Traced:
    return less(trace, y, x)


@operation("ge", "greater_equal")
def _ge(trace: Trace, x: Any, y: Any) -> Traced:
    return _le(trace, y, x)


@operation("eq", "equal")
def _eq(trace: Trace, x: Any, y: Any) -> Traced:
    x, y = together(trace, x, y)
    return _not(trace, _xor(trace, x, y)) if x.is_condition and y.is_condition else _compared(trace, x, y, ZERO)


@operation("ne", "not_equal")
def _ne(trace: Trace, x: Any, y: Any) -> Traced:
    return _not(trace, _eq(trace, x, y))


# ---- logic ----------------------------------------------------------------------------------------------------------
def _truths(trace: Trace, name: str, *values: Any) -> list[Any]:
    found = [operand(trace, x) for x in values]
    if not all(x.is_condition for x in found):
        raise UntraceableError(f"`{name}` on the bits of numbers")
    return [condition(x) for x in found]


@operation("bitwise_and", "and", "rand")
def _and(trace: Trace, x: Any, y: Any) -> Traced:
    """On conditions both; on numbers x & (2**n - 1), which is x % 2**n."""
    x, y = together(trace, x, y)
    for a, b in ((x, y), (y, x)):
        ones = None if a.is_condition or b.is_condition else known(b)
        if ones is not None and ones >= 0 and ones & (ones + 1) == 0:
            return _remainder(trace, a, ones + 1)
    return Traced(trace, forms.both(*_truths(trace, "&", x, y)), "bool")


@operation("bitwise_or", "or", "ror")
def _or(trace: Trace, x: Any, y: Any) -> Traced:
    return Traced(trace, forms.either(*_truths(trace, "|", x, y)), "bool")


@operation("bitwise_xor", "xor", "rxor")
def _xor(trace: Trace, x: Any, y: Any) -> Traced:
    a, b = _truths(trace, "^", x, y)
    one = forms.both(a, forms.negated(b))
    return Traced(trace, forms.either(one, forms.both(forms.negated(a), b)), "bool")


@operation("bitwise_not", "invert")
def _not(trace: Trace, x: Any) -> Traced:
    """On a condition its complement; on a number -x - 1."""
    x = operand(trace, x)
    if not x.is_condition:
        return _sub(trace, -1, x)
    return Traced(trace, forms.negated(condition(x)), "bool")


def _on_truths(rule: Callable[..., Traced]) -> Callable[..., Traced]:
    """The rule after every number became the condition that it is not 0."""

    def call(trace: Trace, *values: Any) -> Traced:
        return rule(trace, *(Traced(trace, condition(operand(trace, x)), "bool") for x in values))

    return call


for _name, _rule in (("and", _and), ("or", _or), ("xor", _xor), ("not", _not)):
    OPERATIONS[f"logical_{_name}"] = _on_truths(_rule)
