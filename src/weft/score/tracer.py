"""Score functions, traced: f(score, b, h, q, k) is called once with objects that stand for numbers.

What a trace does not know ends it by an error that names the operation and the line; it never guesses. Captured arrays
become tables. torch hands a read by a traced index to the index itself. Arrays of numpy and JAX do not, so they are
replaced by `Held` ones in a copy of the function.
"""

from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from weft.errors import OptionError, WeftError
from weft.score.expression import INDICES, Builder, Ref
from weft.score.text import written
from weft.score.value import Score
from weft.tracing.answering import Answering
from weft.tracing.capture import codes, name_of, replaced
from weft.tracing.place import place_of

NAMES = ("score", *INDICES)
FORM = "pass a function of (score, b, h, q, k)"
WRITE = (
    "write it with arithmetic, comparisons, where, min, max, clamp, exp, log, tanh, // and % by constants, and tables "
    "that b, h, q and k read"
)
AUGMENTED = {f"__i{name}__" for name in ("add", "sub", "mul", "floordiv", "mod", "truediv", "pow", "and", "or", "xor",
                                         "lshift", "rshift")}  # fmt: skip


class UntraceableError(Exception):
    """Internal: the trace ends here; the text names the operation."""


class ChangedError(Exception):
    """Internal: the function changes something that outlives it; the text says what."""


class Trace:
    """One run of a function. tables: the arrays that it read, in order. convert: of an array what is kept of it."""

    def __init__(self) -> None:
        self.build = Builder()
        self.tables: list[Any] = []

    def value(self, ref: Ref) -> Value:
        return Value(self, ref)

    def number(self, x: Any) -> Ref:
        """An operand: a traced value, a number, an array of one element: a constant unless it is learned."""
        if isinstance(x, Value):
            return x.ref
        if isinstance(x, (bool, int, float)):
            return self.build.const(x)
        if isinstance(x, Part):
            return x.whole()
        array = x.array if isinstance(x, Held) else x
        if not hasattr(array, "dtype"):
            raise UntraceableError(f"an operation with a {type(x).__name__}")
        size = array.numel() if hasattr(array, "numel") else array.size
        if size != 1:
            raise UntraceableError(f"an operation with an array of shape {tuple(array.shape)}, which no index reads")
        if _is_learned(array) or not _is_here(array):
            return Part(self, array).at((0,) * len(array.shape)).ref
        return self.build.const(array.item())

    def table(self, array: Any) -> int:
        """The number of a table."""
        for number, known in enumerate(self.tables):
            if known is array:
                return number
        self.tables.append(array)
        return len(self.tables) - 1


def _is_learned(array: Any) -> bool:
    """Whether somebody may differentiate by an array: torch says so, and JAX traces it."""
    jax = sys.modules.get("jax")
    return bool(getattr(array, "requires_grad", False)) or (jax is not None and isinstance(array, jax.core.Tracer))


def _is_here(array: Any) -> bool:
    """Whether the content of an array of one element can be read without waiting for a device."""
    device = getattr(array, "device", None)
    return device is None or str(getattr(device, "type", getattr(device, "platform", device))) == "cpu"


def kind_of_array(array: Any) -> str:
    """The kind of an array's entries."""
    name = str(array.dtype).removeprefix("torch.")
    if name == "bool":
        return "bool"
    if name.startswith(("int", "uint")):
        return "int"
    if name.startswith(("float", "bfloat")):
        return "real"
    raise UntraceableError(f"a read of a table of {name}")


class Value(Answering):
    """A number or a condition over pairs. root: "score", "b", "h", "q" or "k" for an argument of the function."""

    __slots__ = ("ref", "root", "trace")

    def __init__(self, trace: Trace, ref: Ref, root: str = "") -> None:
        self.trace, self.ref, self.root = trace, ref, root

    @property
    def kind(self) -> str:
        return self.trace.build.kind(self.ref)

    @property
    def dtype(self) -> Any:
        name = {"real": "float32", "int": "int64", "bool": "bool"}[self.kind]
        torch = sys.modules.get("torch")
        return getattr(torch, name) if torch else name

    @property
    def device(self) -> Any:
        torch = sys.modules.get("torch")
        return torch.device("cpu") if torch else "cpu"

    def knows(self, name: str) -> bool:
        return _function_of(name) is not None

    def end(self, what: str) -> NoReturn:
        raise UntraceableError(what)

    def operate(self, name: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        function = _function_of(name)
        if "out" in options:
            raise UntraceableError(f"`{name}` with out=")
        if function is None:
            raise UntraceableError(f"`{name}`")
        in_place = name in AUGMENTED or (name.endswith("_") and not name.startswith("__"))
        if in_place:
            _forbid_change(args[0])
        try:
            found = function(self.trace, *args, **options)
        except TypeError as error:
            raise UntraceableError(f"`{name}` with these arguments ({error})") from None
        if not in_place:
            return found
        args[0].ref = self.trace.build.to(args[0].kind, found.ref)  # other names of the object have it too
        return args[0]

    def __bool__(self) -> bool:
        raise UntraceableError(
            "a branch on its value (`if`, `and`, `or`, `not`, or a chained comparison); write where()"
        )

    def __index__(self) -> int:
        raise UntraceableError("its value as a plain number (int(), range(), a list index)")

    __int__ = __index__

    def item(self) -> NoReturn:
        self.end("its value as a plain number (item())")

    def __str__(self) -> str:
        raise UntraceableError("its value as text (print, format)")

    def __format__(self, _: str) -> str:
        raise UntraceableError("its value as text (print, format)")

    def __getitem__(self, index: Any) -> Any:
        return self.operate("getitem", (self, index), {})

    def __setitem__(self, index: Any, value: Any) -> None:
        raise ChangedError("a part of a score")


def _forbid_change(x: Any) -> None:
    if not isinstance(x, Value):
        raise ChangedError("a captured array")
    if x.root:
        raise ChangedError(f"its argument {x.root}")


def _function_of(name: str) -> Callable[..., Any] | None:
    """The operation that a function or a method of that name is, in place or not."""
    from weft.score import activations  # noqa: F401 - which adds to them
    from weft.score.operations import OPERATIONS

    plain = name.strip("_")
    return OPERATIONS.get(plain.removeprefix("i") if name in AUGMENTED else plain)


class Part:
    """A table read by some of its indices so far: table[h] of a table of two axes."""

    def __init__(self, trace: Trace, array: Any, indices: tuple[Ref, ...] = ()) -> None:
        self.trace, self.array, self.indices = trace, array, indices

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)[len(self.indices) :]

    @property
    def dtype(self) -> Any:
        return self.array.dtype

    def __getitem__(self, index: Any) -> Any:
        return self.at(index)

    def __len__(self) -> int:
        return self.shape[0]

    def at(self, index: Any) -> Any:
        """The entry where no index is missing, else what is left of the table."""
        given = index if isinstance(index, tuple) else (index,)
        if len(given) > len(self.shape):
            raise UntraceableError(f"a read of a table of shape {tuple(self.array.shape)} by {len(given)} indices")
        refs = [self._index(one, length) for one, length in zip(given, self.shape, strict=False)]
        made = Part(self.trace, self.array, (*self.indices, *refs))
        return made if made.shape else self.trace.value(made.whole())

    def _index(self, index: Any, length: int) -> Ref:
        build = self.trace.build
        if isinstance(index, slice) or index is None or index is ...:
            raise UntraceableError("a read of a table by a slice; give an index for each axis")
        ref = self.trace.number(index)
        if build.kind(ref) != "int":
            raise UntraceableError(
                f"a read of a table by {'a condition' if build.kind(ref) == 'bool' else 'a real number'}"
            )
        value = build.known(ref)
        return build.const(int(value) + length) if value is not None and value < 0 else ref

    def whole(self) -> Ref:
        """The entry; raises where an index is missing."""
        if self.shape:
            raise UntraceableError(f"an operation with {self.shape} entries of a table, which no index reads")
        return self.trace.build.read(self.trace.table(self.array), kind_of_array(self.array), self.indices)


class Held:
    """A captured array of numpy or JAX, which a traced index can read. Anything else is done with the array."""

    def __init__(self, trace: Trace, array: Any) -> None:
        self.trace, self.array = trace, array

    def __getitem__(self, index: Any) -> Any:
        given = index if isinstance(index, tuple) else (index,)
        if any(isinstance(one, Value) for one in given):
            return Part(self.trace, self.array).at(index)
        return Held(self.trace, self.array[index]) if getattr(self.array[index], "shape", ()) else self.array[index]

    def __len__(self) -> int:
        return len(self.array)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.array, name)

    def __array__(self, *args: Any, **options: Any) -> Any:
        import numpy as np

        return np.asarray(self.array, *args, **options)


# ---- a function ------------------------------------------------------------------------------------------------------
def traced(
    function: Any, holds: Callable[[Any], bool], asked: str = "attention", own: bool = False
) -> tuple[Score, Trace]:
    """The score that a function computes. holds: whether a captured array cannot be read by a traced index by itself.
    own: whether the function may change its first argument, as FlexAttention's may.

    Raises OptionError where it is none, changes or prints something, branches on values, or cannot be traced.
    """
    text = f"{asked}(score={name_of(function)})"
    _check_form(function, text)
    trace = Trace()
    versions: list[tuple[Any, int]] = []

    def swap(value: Any) -> Any:
        if hasattr(value, "_version"):
            versions.append((value, value._version))
        return Held(trace, value) if holds(value) else value

    of_arrays = replaced(function, swap)
    made = finished(trace, of_arrays, text, name_of(function), own)
    if any(x._version != version for x, version in versions):
        _refuse_change(text, "a tensor that it captured")
    return made, trace


def finished(trace: Trace, function: Callable[..., Any], text: str, name: str, own: bool = False) -> Score:
    """The score of one run: the function is called with what stands for its arguments. text: what was asked."""
    roots = dict.fromkeys(NAMES[:1], "") if own else {}
    try:
        found = function(*(Value(trace, trace.build.leaf(leaf), roots.get(leaf, leaf)) for leaf in NAMES))
        ref = _result(trace, found)
    except WeftError:
        raise
    except ChangedError as error:
        _refuse_change(text, f"{error}, {place_of(error).strip(', ')}")
    except UntraceableError as error:
        raise OptionError(text, f"tracing ended {place_of(error)}at {error}", WRITE) from None
    except Exception as error:  # whatever the function raises, or libraries where they meet a traced value
        raise OptionError(text, f"tracing ended {place_of(error)}at {type(error).__name__}: {error}", WRITE) from error
    expression = trace.build.expression(trace.build.to("real", ref))
    used = sorted({step.value for step in expression.steps if step.op == "read"})
    return Score(written(_renumbered(expression, used)), tuple(trace.tables[i] for i in used), name)


def _renumbered(expression: Any, used: list[int]) -> Any:
    """Tables by their place among those that the result reads."""
    from dataclasses import replace

    steps = (replace(s, value=used.index(s.value)) if s.op == "read" else s for s in expression.steps)
    return replace(expression, steps=tuple(steps))


def _result(trace: Trace, found: Any) -> Ref:
    """What a function returned."""
    if isinstance(found, (Part, Held)) and found.shape:
        raise UntraceableError(f"its result, an array of shape {tuple(found.shape)} instead of one number")
    if found is None or isinstance(found, (tuple, list, dict, str)):
        raise UntraceableError(f"its result, a {type(found).__name__} instead of one number")
    ref = trace.number(found)
    if trace.build.kind(ref) == "bool":
        raise UntraceableError("its result, a condition: pass it as mask, or where(condition, score, -inf)")
    return ref


def _check_form(function: Any, text: str) -> None:
    try:
        inspect.signature(function).bind(*NAMES)
    except TypeError:
        raise OptionError(text, f"it does not take {', '.join(NAMES)}", FORM) from None
    except ValueError:
        raise OptionError(text, "its parameters cannot be seen", f"{FORM}, written in Python") from None
    for code in codes(function):
        for step in dis.get_instructions(code):
            if step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and step.argval == "print":
                cure = "print before the call: a score is computed in kernels, and not by calls of the function"
                raise OptionError(text, "it prints", cure)
            free = step.opname in ("STORE_DEREF", "DELETE_DEREF") and step.argval in code.co_freevars
            if step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL") or (free and code is codes(function)[0]):
                _refuse_change(text, f"`{step.argval}`, which lies outside of it")


def _refuse_change(text: str, what: str) -> NoReturn:
    cure = (
        "write `x = x + 1`, not `x += 1`, and change nothing that outlives the call: it is traced, and not called again"
    )
    raise OptionError(text, f"it changes {what}", cure) from None
