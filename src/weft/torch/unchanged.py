"""Whether a mask that was met before reads what it read then: a look at each value, where a fingerprint makes a key.

Only what changes by being replaced can be told so: numbers, strings, functions, tuples of these, and tensors, which
count their versions. A mask that reads lists, arrays or objects of the user's is found by its fingerprint alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import ReferenceType, ref

import numpy as np
from torch import Size, Tensor

from weft.torch.fingerprint import IDENTITIES, PLAIN, SCALARS, Fingerprint, bound_to, is_library, names_of, versioned

Made = TypeVar("Made")
ABSENT = object()  # the value of a global that there is not
WATCHED = frozenset((FunctionType, *PLAIN))
TUPLES = frozenset((tuple, Size))


class Code(NamedTuple):
    """A function with all that it reads. cells, names: variables by their place in its closure and globals, with the
    value of each. weak_cells, weak_names: those that are functions and tensors, as weak references.
    """

    function: ReferenceType[FunctionType]
    code: CodeType
    defaults: tuple[Any, ...] | None
    cells: list[tuple[int, Any]]
    weak_cells: list[tuple[int, ReferenceType[Any]]]
    names: list[tuple[str, Any]]
    weak_names: list[tuple[str, ReferenceType[Any]]]

    def holds(self) -> bool:
        """Whether it is there, and every value what it was."""
        reference, code, defaults, cells, weak_cells, names, weak_names = self
        f = reference()
        if f is None or f.__code__ is not code or f.__defaults__ is not defaults or f.__kwdefaults__ or f.__dict__:
            return False
        closure: Any = f.__closure__
        for i, value in cells:
            if closure[i].cell_contents is not value:
                return False
        for i, weak in weak_cells:
            if closure[i].cell_contents is not weak():
                return False
        scope = f.__globals__
        for name, value in names:
            if scope.get(name, ABSENT) is not value:
                return False
        for name, weak in weak_names:  # noqa: SIM110 - a generator costs as much again
            if scope.get(name, ABSENT) is not weak():
                return False
        return True


@dataclass(frozen=True, eq=False, slots=True)
class Unchanged(Generic[Made]):
    """mask: the one that was met. tensors: what it reads, as `versioned` said. made: by the sizes of a call."""

    mask: ReferenceType[Any]
    functions: list[Code] = field(default_factory=list)
    tensors: list[tuple[ReferenceType[Tensor], tuple[Any, ...]]] = field(default_factory=list)
    made: dict[Any, Made] = field(default_factory=dict)

    def holds(self, mask: Any) -> bool:
        """Whether this is the mask, and every value what it was."""
        if self.mask() is not mask:
            return False
        try:
            for function in self.functions:
                if not function.holds():
                    return False
            for tensor, known in self.tensors:
                x = tensor()
                if x is None or versioned(x) != known:
                    return False
        except (RuntimeError, ValueError):  # a tensor that lost its version or memory, a variable without a value
            return False
        return True


class _OtherError(Exception):
    """Internal: a value may change without being replaced."""


def unchanged(mask: Any, found: Fingerprint, forget: Callable[[Any], None]) -> Unchanged[Any] | None:
    """What a mask of that fingerprint, one of `WATCHED`, reads; None where it reads something that changes in itself.

    forget: is called when the mask goes.
    """
    if found.hashed or any(f.__kwdefaults__ or f.__dict__ for f in found.functions):
        return None
    made: Unchanged[Any] = Unchanged(ref(mask, forget))
    made.tensors.extend((ref(x), versioned(x)) for x in found.tensors)
    try:
        made.functions.extend(map(_read, found.functions))
    except (_OtherError, ValueError):
        return None
    return made


def _read(f: FunctionType) -> Code:
    _check(f.__defaults__)
    read = Code(ref(f), f.__code__, f.__defaults__, [], [], [], [])
    for i, cell in enumerate(f.__closure__ or ()):
        _add(i, cell.cell_contents, read.cells, read.weak_cells)
    for name in () if is_library(f.__module__) else names_of(f.__code__).globals:
        _add(name, f.__globals__.get(name, ABSENT), read.names, read.weak_names)
    return read


def _add(place: Any, value: Any, kept: list[Any], weak: list[Any]) -> None:
    _check(value)
    if type(value) in WATCHED:
        weak.append((place, ref(value)))
    else:
        kept.append((place, value))


def _check(value: Any) -> None:
    """Raise where another content could stand in the same object, and nobody counts it."""
    kind = type(value)
    if kind in SCALARS or kind in WATCHED or value is ABSENT:
        return
    if kind in TUPLES:
        for entry in value:
            _check(entry)
    elif kind is frozenset:  # of scalars, as its fingerprint requires
        return
    elif kind is MethodType:
        _check(value.__func__)
        _check(value.__self__)
    elif bound_to(value) is not None or not (isinstance(value, (*IDENTITIES, np.generic)) or _is_of_library(value)):
        raise _OtherError


def _is_of_library(value: Any) -> bool:
    return (isinstance(value, ModuleType) and is_library(value.__name__)) or (
        isinstance(value, type) and is_library(value.__module__)
    )
