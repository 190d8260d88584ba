"""A function as it is given: which indices it takes, and the arrays that it captured."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

from weft.errors import InputError

INDICES = {2: ("q", "k"), 4: ("b", "h", "q", "k")}


def indices(function: Any) -> tuple[str, ...]:
    """The indices that a mask function is called with: (q, k), or (b, h, q, k), which `*args` means as well."""
    asked = f"recognize({name_of(function)})"
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        raise InputError(
            asked, "its parameters cannot be seen", "wrap it in a function of (q, k) or (b, h, q, k)"
        ) from None
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if any(p.kind is p.VAR_POSITIONAL for p in parameters) and len(places) <= 4:
        return INDICES[4]
    demanded = [p for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    required = [p for p in places if p.default is p.empty]
    for count in (len(required), len(places)):
        if count in INDICES and not demanded:
            return INDICES[count]
    raise InputError(
        asked, f"it takes {', '.join(str(p) for p in parameters) or 'nothing'}",
        "pass a function of (q, k), or of (b, h, q, k)",
    )  # fmt: skip


def name_of(function: Any) -> str:
    """What to call a function in a message."""
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return str(name).rpartition("<locals>.")[2]


Swap = Callable[[Any], Any]  # of an array what stands for it, of anything else itself


class _Walk:
    """One walk through what a function captured. seen: what became of each object, by id."""

    def __init__(self, swap: Swap) -> None:
        self.swap = swap
        self.seen: dict[int, Any] = {}


def replaced(function: Any, swap: Swap) -> Any:
    """The function, reading what `swap` makes of the arrays that it captured.

    Looks into closures, defaults, globals it names, partials and attributes of callable objects, and into the functions
    found there. What it changes, it changes in a copy.
    """
    return _replaced(function, _Walk(swap))


def _replaced(value: Any, walk: _Walk) -> Any:
    seen = walk.seen
    if id(value) in seen:
        return seen[id(value)]
    seen[id(value)] = value
    made = walk.swap(value)
    if made is not value:
        pass
    elif isinstance(value, types.FunctionType):
        made = _copied(value, walk)
    elif isinstance(value, types.MethodType):
        owner, function = _owner(value.__self__, walk), _replaced(value.__func__, walk)
        if owner is not value.__self__ or function is not value.__func__:
            made = types.MethodType(function, owner)
    elif isinstance(value, functools.partial):
        made = _partial(value, walk)
    elif isinstance(value, (tuple, list)) and len(value) <= 16:
        parts = [_replaced(part, walk) for part in value]
        if type(value) in (tuple, list) and any(a is not b for a, b in zip(parts, value, strict=True)):
            made = type(value)(parts)
    elif _is_plain_object(value):
        made = _object(value, walk)
    seen[id(value)] = made
    return made


def _owner(value: Any, walk: _Walk) -> Any:
    """What a method belongs to, which need not be callable itself."""
    if isinstance(value, type) or not hasattr(value, "__dict__") or id(value) in walk.seen:
        return _replaced(value, walk)
    walk.seen[id(value)] = value
    walk.seen[id(value)] = _object(value, walk)
    return walk.seen[id(value)]


def _is_plain_object(value: Any) -> bool:
    return callable(value) and not isinstance(value, type) and hasattr(value, "__dict__")


def _partial(value: functools.partial[Any], walk: _Walk) -> Any:
    function, args = _replaced(value.func, walk), [_replaced(x, walk) for x in value.args]
    options = {key: _replaced(x, walk) for key, x in value.keywords.items()}
    return functools.partial(function, *args, **options)


def _object(value: Any, walk: _Walk) -> Any:
    """A callable object with its arrays replaced, where it has any and can be copied so."""
    fresh = {key: _replaced(x, walk) for key, x in vars(value).items()}
    own = any("__new__" in vars(one) for one in type(value).__mro__[:-1])  # which nobody can make without its arguments
    if own or all(x is vars(value)[key] for key, x in fresh.items()):
        return value
    made = object.__new__(type(value))
    made.__dict__.update(fresh)
    return made


def _copied(function: types.FunctionType, walk: _Walk) -> Callable[..., Any]:
    """The function over other cells and globals; itself where it captured no array."""
    cells = [_content(cell, walk) for cell in function.__closure__ or ()]
    names = {name for code in _codes(function.__code__) for name in code.co_names}
    used = {name: function.__globals__[name] for name in names if name in function.__globals__}
    fresh = {name: _replaced(x, walk) for name, x in used.items() if _may_hold_arrays(x, walk)}
    fresh = {name: x for name, x in fresh.items() if x is not used[name]}
    defaults = tuple(_replaced(x, walk) for x in function.__defaults__ or ())
    same = [new is old for new, old in zip(defaults, function.__defaults__ or (), strict=True)]
    if (
        not fresh
        and all(new is cell for new, cell in zip(cells, function.__closure__ or (), strict=True))
        and all(same)
    ):
        return function
    scope = {**function.__globals__, **fresh} if fresh else function.__globals__
    made = types.FunctionType(function.__code__, scope, function.__name__, defaults or None, tuple(cells) or None)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def _content(cell: Any, walk: _Walk) -> Any:
    try:
        value = cell.cell_contents
    except ValueError:  # not filled yet
        return cell
    made = _replaced(value, walk)
    return cell if made is value else types.CellType(made)


def _may_hold_arrays(value: Any, walk: _Walk) -> bool:
    """Arrays, and functions of the user: libraries are left alone."""
    module = (getattr(value, "__module__", None) or "").partition(".")[0]
    of_user = isinstance(value, types.FunctionType) and module not in ("numpy", "torch", "jax", "builtins")
    return of_user or walk.swap(value) is not value


def codes(function: Any) -> list[types.CodeType]:
    """The code of a function and of those written inside it."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return [] if code is None else _codes(code)


def _codes(code: types.CodeType) -> list[types.CodeType]:
    inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return [code, *(x for c in inner for x in _codes(c))]
