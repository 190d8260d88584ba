"""Checks of library arguments: integers that are integers, tables that are tables, one error text for all of them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import Any, ParamSpec, cast

import numpy as np

from weft.errors import PatternError
from weft.pattern import crossing, misuse
from weft.pattern.algebra import Call, Pattern, text
from weft.pattern.bounds import IntTable
from weft.pattern.integers import scalar

P = ParamSpec("P")
LIBRARY: dict[str, Callable[..., Pattern]] = {}
LARGEST = 2**31
DEFAULTS: dict[str, list[tuple[str, Any]]] = {}


def library(meaning: Callable[P, Pattern]) -> Callable[P, Call]:
    """Make a function of the pattern library: its call becomes a `Call` that prints, compares and travels as itself."""
    signature = inspect.signature(meaning)
    name = meaning.__name__

    @functools.wraps(meaning)
    def call(*args: P.args, **kwargs: P.kwargs) -> Call:
        if crossing.tracing():
            return crossing.tracer.call(name, written(name, {**dict(zip(keys, args, strict=False)), **kwargs}))
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            misuse.refused(name, signature, str(error), args, kwargs)
        kept = tuple(
            (key, frozen)
            for key, value in bound.arguments.items()
            if not _same((frozen := freeze(value, name, key)), signature.parameters[key].default)
        )
        return Call(name, kept, meaning(**dict(kept)))  # type: ignore[call-arg]

    LIBRARY[name] = call
    DEFAULTS[name] = [(key, p.default) for key, p in signature.parameters.items()]
    keys = tuple(signature.parameters)
    return call


def _same(value: Any, default: Any) -> bool:
    """Equal and of one type: True is not 1 here, or it would slip past the check for integers."""
    return type(value) is type(default) and value == default


def rebuild(name: str, args: dict[str, Any], align: str | None = None) -> Pattern:
    """The call `name(**args)`, with `align` filled in if the function takes one and args has none."""
    made = function(name)
    if align is not None and args.get("align") is None and "align" in inspect.signature(made).parameters:
        args = {**args, "align": align}
    return made(**args)


def function(name: str) -> Callable[..., Pattern]:
    """The library function of that name; the whole library is there once one is asked for."""
    if name not in LIBRARY:
        import_module("weft")
        import_module("weft.acsr.packed")
    return LIBRARY[name]


def freeze(value: Any, function: str, name: str) -> Any:
    """An argument as an immutable value: scalars as Python's, vectors of integers as IntTable, lists as tuples."""
    value = scalar(value)
    if isinstance(value, IntTable) and not len(value):
        return ()  # as every empty list, so that patterns which mean the same are equal
    if value is None or isinstance(value, (str, bool, int, Pattern, IntTable)):
        return value
    if isinstance(value, np.ndarray) and value.dtype.kind in "iu" and value.ndim == 1 and value.size:
        return IntTable(value)
    if isinstance(value, Iterable):
        items = list(value.tolist() if hasattr(value, "tolist") else value)
        if (kinds := set(map(type, items))) != {int}:
            items = list(map(scalar, items))
            kinds = set(map(type, items))
        if kinds and all(issubclass(kind, int) and kind is not bool for kind in kinds):
            try:
                return IntTable(items)
            except OverflowError:
                asked = f"{function}({name}=...)"
                raise PatternError(asked, "an integer in it exceeds 64 bits", "pass smaller ones") from None
        return tuple(freeze(x, function, f"{name}[{at}]") for at, x in enumerate(items))
    raise PatternError(
        f"{function}({name}={value!r})", f"{type(value).__name__} is neither an integer nor a list of integers",
        "see help(weft." + function + ") for what it takes",
    )  # fmt: skip


def integer(function: str, name: str, value: Any, least: int | None = None, far: str = "") -> int:
    """`value` as an int of at least `least`, or a PatternError that names the argument; far: the cure of a value beyond
    LARGEST, if there is a better one than another value.
    """
    asked = f"{function}({name}={text(value)})"
    if isinstance(value, bool) or not isinstance(value, int):
        raise PatternError(asked, f"{name} must be an integer, not {type(value).__name__}", f"pass an int for {name}")
    if least is not None and value < least:
        cure = "; ".join(filter(None, [f"pass {name} >= {least}", far]))
        raise PatternError(asked, f"{name} must be at least {least}, got {value}", cure)
    if abs(value) > LARGEST:
        allowed = f"pass {name} between {'-2**31' if least is None else least} and 2**31"
        raise PatternError(asked, f"{name} is beyond any sequence (2**31 tokens)", far or allowed)
    return value


def integers(function: str, name: str, value: Any, least: int = 0) -> IntTable:
    """`value` as a vector of integers of at least `least`; where that is no less than 0 they count tokens, up to
    LARGEST.
    """
    if isinstance(value, tuple) and not value:
        value = IntTable([])
    if not isinstance(value, IntTable):
        raise PatternError(f"{function}({name}={text(value)})", f"{name} must be a list of integers", _flat(value))
    few = value.array < least
    wrong = few | (value.array > LARGEST) if least >= 0 else few
    if wrong.any():
        where = int(wrong.argmax())
        limit = f"least allowed is {least}" if few[where] else "largest allowed is 2**31"
        raise PatternError(
            f"{function}({name}=...)", f"{name}[{where}] is {int(value.array[where])}, the {limit}",
            f"pass {name} of {least} or more" if few[where] else f"pass {name} of 2**31 or less",
        )  # fmt: skip
    return value


def _flat(value: Any) -> str:
    """What to pass instead of a value that is no list of integers."""
    if isinstance(value, tuple) and set(map(type, value)) <= {bool}:
        return "of a mask pass which are True, mask.nonzero(), or how many, mask.sum(-1)"
    if isinstance(value, tuple) and any(isinstance(x, (tuple, IntTable)) for x in value):
        return "pass a flat list: one row in each of per_batch([...]), or of a mask its lengths, mask.sum(-1)"
    return "pass a flat list"


def patterns(function: str, value: Any) -> tuple[Pattern, ...]:
    """`value` as a non-empty tuple of patterns."""
    if not isinstance(value, tuple) or not value or not all(isinstance(p, Pattern) for p in value):
        raise PatternError(f"{function}({value!r})", "a non-empty list of patterns is needed", "pass [pattern, ...]")
    return cast("tuple[Pattern, ...]", value)


def choice(function: str, name: str, value: Any, allowed: Sequence[Any]) -> Any:
    """`value`, if it is one of `allowed`."""
    if value not in allowed:
        raise PatternError(
            f"{function}({name}={value!r})", f"{name} is none of {', '.join(map(repr, allowed))}", "pass one of them"
        )
    return value


def axes(function: str, name: str, value: Any, rank: int, least: int) -> tuple[int, ...]:
    """One integer per axis; an int counts for all axes."""
    items = [value] * rank if isinstance(value, int) and not isinstance(value, bool) else _items(function, name, value)
    if len(items) != rank:
        raise PatternError(
            f"{function}({name}={text(value)})", f"{len(items)} entries for {rank} axes", "pass one integer per axis"
        )
    return tuple(integer(function, name, x, least) for x in items)


def flags(function: str, name: str, value: Any, rank: int) -> tuple[bool, ...]:
    """One bool per axis; a bool counts for all axes."""
    items = (value,) * rank if isinstance(value, bool) else value
    if not isinstance(items, tuple) or len(items) != rank or not all(isinstance(x, bool) for x in items):
        raise PatternError(
            f"{function}({name}={text(value)})",
            f"one True or False for each of {rank} axes is needed" if rank > 1 else "it is neither True nor False",
            "pass a bool",
        )
    return items


def _items(function: str, name: str, value: Any) -> list[Any]:
    if isinstance(value, IntTable):
        return [int(x) for x in value.array]
    if isinstance(value, tuple):
        return list(value)
    raise PatternError(
        f"{function}({name}={text(value)})", f"{name} must be an integer or a list of integers", "pass e.g. (16, 16)"
    )


def written(name: str, given: dict[str, Any]) -> list[tuple[str, Any]]:
    """The arguments that the structure names: those given, and every one whose default is an integer. So an integer
    equal to its default makes no other structure.
    """
    unknown = [key for key in given if key not in [k for k, _ in DEFAULTS[name]]]
    if unknown:
        raise TypeError(name + "() has no argument " + unknown[0])
    out = []
    for key, default in DEFAULTS[name]:
        value = given.get(key, default)
        if value is not default or (isinstance(default, int) and not isinstance(default, bool)):
            out.append((key, value))
    return out
