"""A mask as a key: a tensor is its place and its version, a function is its code and all that it reads.

Two masks of one fingerprint are one mask, as far as anybody changes tensors by torch's own operations: these count a
tensor's versions. Tensors of inference mode and numpy's arrays have no versions. A hash of their content tells them
apart, which is read each time. What else could change unseen is not given a key (`UnseenError`).
"""

from __future__ import annotations

import dis
import enum
import functools
import sys
import types
from abc import ABC
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Any, Generic, NamedTuple, Protocol
from weakref import ReferenceType

import numpy as np
import torch
from torch import Tensor

PLAIN = (Tensor, torch.nn.Parameter)
SCALARS = frozenset((bool, int, float, complex, str, bytes, type(None), type(...), range, np.dtype, torch.device))
IDENTITIES = (
    types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType,
    np.ufunc, torch.dtype, torch.layout, torch.memory_format, enum.Enum,
)  # fmt: skip
BOUND = (types.BuiltinFunctionType, types.MethodWrapperType)
# Modules whose functions and constants nobody changes; and what of them a class of the user's may be derived from.
LIBRARIES = sys.stdlib_module_names | {"torch", "numpy", "triton", "jax", "weft"} - {"__main__"}
BASES = frozenset((object, torch.nn.Module, ABC, Generic, Protocol, tuple))
AT_RUN_TIME = frozenset(
    ("getattr", "vars", "globals", "locals", "eval", "exec", "attrgetter", "__dict__", "__import__")
)
# Names of a class that no operator calls.
UNREAD = frozenset((
    "__module__", "__doc__", "__dict__", "__weakref__", "__slots__", "__annotations__", "__qualname__",
    "__match_args__", "__parameters__", "__dataclass_fields__", "__dataclass_params__", "__orig_bases__",
    "__abstractmethods__", "__static_attributes__", "__firstlineno__", "__repr__", "__str__", "__del__", "__reduce__",
))  # fmt: skip
LONGEST = 4096  # entries of a list, and parts of a key
KEPT = 1024  # code objects


class UnseenError(Exception):
    """Internal: a mask reads something whose changes could not be seen; the text says what."""


def name_of(function: Any) -> str:
    """What to call a function in a message."""
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return str(name).rpartition("<locals>.")[2]


class Fingerprint(NamedTuple):
    """key: what a mask is. tensors: told apart by their identity, so they must be alive. held: other objects in the
    key by their identity, to be kept. hashed: whether some content was read for the key. functions: those that were
    read.
    """

    key: tuple[Any, ...]
    tensors: tuple[Tensor, ...]
    held: tuple[Any, ...]
    hashed: bool
    functions: tuple[types.FunctionType, ...] = ()

    def is_of(self, references: tuple[ReferenceType[Tensor], ...]) -> bool:
        """Whether these are the same tensors, and not others that took their place."""
        for x, reference in zip(self.tensors, references, strict=True):  # noqa: SIM110 - a generator costs as much again
            if reference() is not x:
                return False
        return True


def fingerprint(mask: Any) -> Fingerprint:
    """That of a tensor, a function, or a tuple of such. Raises UnseenError."""
    if type(mask) in PLAIN and not mask.is_inference():
        return Fingerprint(versioned(mask), (mask,), (), False)
    reading = _Reading()
    reading.value(mask)
    if reading.waiting:
        reading.finish()
    key, tensors, held = tuple(reading.parts), tuple(reading.tensors), tuple(reading.held)
    return Fingerprint(key, tensors, held, reading.hashed, tuple(reading.functions))


def versioned(x: Tensor) -> tuple[Any, ...]:
    """What tells a tensor from others, and from itself before a change. Raises RuntimeError where it has no memory."""
    return Tensor, id(x), x.data_ptr(), x._version, x.shape, x.stride(), x.dtype


class Names(NamedTuple):
    """What code reads by name: globals, attributes of whatever it meets, modules that it imports."""

    globals: tuple[str, ...]
    attributes: frozenset[str]
    imports: tuple[str, ...]


_names: dict[int, tuple[types.CodeType, Names]] = {}  # by id, since a code object's hash is slow


def names_of(code: types.CodeType) -> Names:
    """The names that a function and those inside it read; UnseenError where they are made at run time."""
    found = _names.get(id(code))
    if found is None:
        read: dict[str, set[str]] = {"global": set(), "attribute": set(), "import": set()}
        _collect(code, read)
        late = sorted(AT_RUN_TIME & (read["global"] | read["attribute"]))
        if late:
            raise UnseenError(f"{code.co_name} reads names that are made at run time, by {late[0]}")
        names = Names(tuple(sorted(read["global"])), frozenset(read["attribute"]), tuple(sorted(read["import"])))
        if len(_names) >= KEPT:
            _names.clear()
        found = _names[id(code)] = code, names
    return found[1]


def _collect(code: types.CodeType, read: dict[str, set[str]]) -> None:
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            read["global"].add(step.argval)
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM"):
            read["attribute"].add(step.argval)
        elif step.opname == "IMPORT_NAME":
            read["import"].add(step.argval)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            _collect(inner, read)


class _Reading:
    """One walk through a mask. parts: the key, flat; every entry begins with what says how many follow.

    A function may hand an object to any other. So attributes are read once all names that occur are known. waiting: the
    objects, with the names of each that were read.
    """

    def __init__(self) -> None:
        self.parts: list[Any] = []
        self.tensors: list[Tensor] = []
        self.held: list[Any] = []
        self.functions: list[types.FunctionType] = []
        self.seen: dict[int, int] = {}
        self.hashed = False
        self.attributes: set[str] = set()
        self.waiting: list[tuple[Any, set[str]]] = []

    def value(self, x: Any) -> None:
        """Add a value."""
        kind = type(x)
        if kind in SCALARS:
            self.parts += (kind, x)
            return
        if kind in PLAIN:
            self._tensor(x)
            return
        if len(self.parts) > LONGEST:
            raise UnseenError(f"it reads more than {LONGEST // 2} values")
        if id(x) in self.seen:
            self.parts += ("again", self.seen[id(x)])
            return
        self.seen[id(x)] = len(self.seen)
        add = _KINDS.get(kind)
        if add is not None:
            add(self, x)
        elif isinstance(x, IDENTITIES):
            self._identity(x)
        elif isinstance(x, np.generic):
            self.parts += (kind, x.item())
        elif isinstance(x, type):
            self._class(x)
        else:
            self._object(x)

    def finish(self) -> None:
        """Read what is asked of objects by name, until no more names and objects come up."""
        before = None
        while before != (now := (len(self.attributes), len(self.waiting))):
            before = now
            for x, done in list(self.waiting):
                names = sorted(self.attributes - done)
                done.update(names)
                for name in names:
                    for content in _asked(x, name):
                        self.parts.append(name)
                        self.value(content)

    def _identity(self, x: Any) -> None:
        at = bound_to(x)
        if at is not None:
            self.parts += (type(x), x.__name__)
            self.value(at)
            return
        self.parts += ("is", id(x))
        self.held.append(x)

    # ---- arrays ------------------------------------------------------------------------------------------------------
    def _tensor(self, x: Tensor) -> None:
        if x.is_inference():  # which has no version
            self._content(x.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy(), x)
        else:
            self.tensors.append(x)
            self.parts += versioned(x)

    def _array(self, x: Any) -> None:
        if x.dtype.hasobject:
            raise UnseenError("it reads a numpy array of objects")
        self._content(x, x)

    def _content(self, flat: Any, x: Any) -> None:
        self.hashed = True
        self.parts += (type(x), tuple(x.shape), str(x.dtype), blake2b(flat.tobytes(), digest_size=16).digest())

    # ---- containers --------------------------------------------------------------------------------------------------
    def _sequence(self, x: Any) -> None:
        if len(x) > LONGEST:
            raise UnseenError(f"it reads a {type(x).__name__} of {len(x)} entries")
        self.parts += (type(x), len(x))
        for entry in x:
            self.value(entry)

    def _mapping(self, x: Any) -> None:
        self._sequence(tuple(x))
        self._sequence(tuple(x.values()))

    def _set(self, x: Any) -> None:
        if len(x) > LONGEST or not all(type(entry) in SCALARS for entry in x):
            raise UnseenError(f"it reads a {type(x).__name__} of other values than numbers and strings, or too many")
        self.parts += (type(x), frozenset((type(entry), entry) for entry in x))

    # ---- functions ---------------------------------------------------------------------------------------------------
    def _function(self, x: types.FunctionType) -> None:
        code, scope = x.__code__, x.__globals__
        self.parts += ("function", id(code))
        self.held.append(code)
        self.functions.append(x)
        for cell in x.__closure__ or ():
            try:
                self.value(cell.cell_contents)
            except ValueError:  # not filled yet
                raise UnseenError(f"{x.__name__} reads a variable that has no value yet") from None
        if x.__defaults__:
            self.value(x.__defaults__)
        if x.__kwdefaults__:
            self.value(x.__kwdefaults__)
        if x.__dict__:
            self.waiting.append((x, set()))
        if is_library(x.__module__):
            return
        names = names_of(code)
        self.attributes |= names.attributes
        for name in names.globals:
            if name in scope:
                self.parts.append(name)
                self.value(scope[name])
        for name in names.imports:
            if not is_library(name):
                raise UnseenError(f"{x.__name__} imports {name} when it runs")

    def _method(self, x: types.MethodType) -> None:
        self.parts.append(types.MethodType)
        self.value(x.__func__)
        self.value(x.__self__)

    def _partial(self, x: functools.partial[Any]) -> None:
        self.parts.append(functools.partial)
        for part in (x.func, x.args, x.keywords):
            self.value(part)

    def _wrapped(self, x: Any) -> None:
        self.parts.append(type(x))
        self.value(x.__wrapped__)

    # ---- what is asked by name ---------------------------------------------------------------------------------------
    def _module(self, x: types.ModuleType) -> None:
        self._identity(x)
        if not is_library(x.__name__):
            self.waiting.append((x, set()))

    def _namespace(self, x: types.SimpleNamespace) -> None:
        self.parts.append(types.SimpleNamespace)
        self.waiting.append((x, set()))

    def _class(self, x: type, unread: frozenset[str] = UNREAD) -> None:
        """A class: what operators call of it, and by name the rest. unread: what no operator calls."""
        self._identity(x)
        if is_library(x.__module__):
            return
        self.waiting.append((x, set()))
        for c in _own(x):
            for name in sorted(name for name in vars(c) if name.startswith("__") and name not in unread):
                self.parts.append(name)
                self.value(_unwrapped(vars(c)[name]))

    def _object(self, x: Any) -> None:
        """An object of a class of the user's, whose values Python sees."""
        kind = type(x)
        classes = _own(kind)
        if any(c not in classes and c not in BASES for c in kind.__mro__) or not classes:
            raise UnseenError(f"it reads a {kind.__qualname__}, whose changes cannot be seen")
        if any("__getattr__" in vars(c) or "__getattribute__" in vars(c) for c in classes):
            raise UnseenError(f"it reads a {kind.__qualname__}, which answers names at run time")
        self.parts.append("object")
        if id(kind) in self.seen:
            self._identity(kind)
        else:
            self.seen[id(kind)] = len(self.seen)
            self._class(kind, UNCALLED)
        self.waiting.append((x, set()))
        if isinstance(x, tuple):
            self._sequence(tuple.__getitem__(x, slice(None)))


def bound_to(x: Any) -> Any:
    """The object whose method a builtin is, as in `table.__getitem__`; None of functions of modules and classes."""
    if not isinstance(x, BOUND) or isinstance(x.__self__, (type, types.ModuleType)):
        return None
    return x.__self__


def _own(kind: type) -> tuple[type, ...]:
    """The classes of the user's that a class is derived from, itself among them."""
    found = _classes.get(kind)
    if found is None:
        if len(_classes) >= KEPT:
            _classes.clear()
        found = _classes[kind] = tuple(c for c in kind.__mro__ if not is_library(c.__module__))
    return found


FIELDS = (type(vars(Fingerprint)["key"]),)  # what answers for the entries of a named tuple
_classes: dict[type, tuple[type, ...]] = {}


def _asked(x: Any, name: str) -> Iterator[Any]:
    """What a module, class, function or object answers to a name, if anything; of an object without its class."""
    if isinstance(x, type):
        for c in _own(x):
            if name in vars(c):
                yield _unwrapped(vars(c)[name])
                return
        return
    values = getattr(x, "__dict__", {})
    if name in values:
        yield values[name]
    elif isinstance(x, types.ModuleType) and "__getattr__" in values:
        raise UnseenError(f"it reads {x.__name__}, which answers names at run time")
    elif isinstance(x, torch.nn.Module):
        yield from (values[held][name] for held in ("_parameters", "_buffers", "_modules") if name in values[held])
    elif any(name in vars(c).get("__slots__", ()) for c in type(x).__mro__) and hasattr(x, name):
        yield getattr(x, name)


def _unwrapped(x: Any) -> Any:
    """What stands behind a property, a static or class method, or a slot."""
    if isinstance(x, property):
        return x.fget
    if isinstance(x, (staticmethod, classmethod)):
        return x.__func__
    if isinstance(x, functools.cached_property):
        return x.func
    return None if isinstance(x, (types.MemberDescriptorType, *FIELDS)) else x


@functools.lru_cache(KEPT)
def is_library(module: str | None) -> bool:
    """Whether nobody changes the functions and constants of a module."""
    return (module or "").partition(".")[0] in LIBRARIES


UNCALLED = UNREAD | {"__init__", "__new__", "__hash__", "__setattr__", "__delattr__", "__getnewargs__"}  # of an object
_KINDS: dict[type, Callable[[_Reading, Any], None]] = {
    types.FunctionType: _Reading._function,
    types.MethodType: _Reading._method,
    functools.partial: _Reading._partial,
    type(functools.lru_cache(len)): _Reading._wrapped,
    types.ModuleType: _Reading._module,
    types.SimpleNamespace: _Reading._namespace,
    np.ndarray: _Reading._array,
    tuple: _Reading._sequence,
    list: _Reading._sequence,
    torch.Size: _Reading._sequence,
    dict: _Reading._mapping,
    set: _Reading._set,
    frozenset: _Reading._set,
}
