"""What decides a kernel's machine code, as content: nothing here depends on a path, a date or the Python that runs.

A store that was filled on one machine therefore serves every machine with the same Triton and the same assembler. Of
Triton its Python sources count. Its library does not, since each Python version has a build of its own.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import textwrap
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import triton
from triton._C import libtriton
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import make_backend
from triton.language import constexpr
from triton.runtime.jit import JITCallable

PARTS = ("backends", "compiler", "experimental", "language", "runtime")  # folders of Triton with what compiles
# Variables that change machine code and are not among those of which Triton's own cache takes note.
BESIDE = ("AMDGCN_ANALYZE_SMALL_TENSOR_RANGE", "AMDGCN_SCALARIZE_PACKED_FOPS", "TRITON_SWAP_MIR")


def digest(content: Any) -> str:
    """The SHA-256 of what JSON can say, in hexadecimal digits."""
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


# ---- what a kernel reaches -------------------------------------------------------------------------------------------
_REACHED: dict[FunctionType, str] = {}


def reached(function: Any) -> str:
    """The hash of a function's text and of all that the text names: functions by theirs, numbers by their values.

    function: as `triton.jit` or `gluon.jit` returns it, or a plain function. What belongs to Triton counts by its name,
    since `compiler` has its text. Raises TypeError for a value whose content is not known.
    """
    plain = function.fn if isinstance(function, JITCallable) else function
    if plain not in _REACHED:
        text = function.src if plain is not function else textwrap.dedent(inspect.getsource(plain))
        named = {name: _content(value) for name, value in _named(plain, text)}
        _REACHED[plain] = digest([text, bool(getattr(function, "noinline", False)), named])
    return _REACHED[plain]


def _named(function: FunctionType, text: str) -> Iterator[tuple[str, Any]]:
    """The names in a function's text that stand for values outside of it, modules looked through."""
    held = (cell.cell_contents for cell in function.__closure__ or ())
    outside = function.__globals__ | dict(zip(function.__code__.co_freevars, held, strict=True))
    nodes = list(ast.walk(ast.parse(text)))
    own = {node.arg for node in nodes if isinstance(node, ast.arg)}
    for node in nodes:
        first, *rest = _dotted(node)
        if first in own or first not in outside:
            continue
        name, value = first, outside[first]
        while isinstance(value, ModuleType) and rest:
            name, value = f"{name}.{rest[0]}", getattr(value, rest.pop(0), None)
        if not isinstance(value, ModuleType):
            yield name, value


def _dotted(node: ast.AST) -> tuple[str, ...]:
    """The parts of a name such as `gl.constexpr`; the first is empty where the node is no such name."""
    if isinstance(node, ast.Name):
        return (node.id,)
    return (*_dotted(node.value), node.attr) if isinstance(node, ast.Attribute) else ("",)


def _content(value: Any) -> Any:
    """What a value means to the compiler, as JSON has it."""
    name = name_of(value)
    if name.startswith(("triton.", "builtins.")) and not name.endswith("."):  # a function or a class
        return name
    if isinstance(value, (JITCallable, FunctionType)):
        return reached(value)
    if getattr(value, "__triton_aggregate__", False):
        return [value.__name__, *map(_content, value.hash_attrs)]
    if isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields"):
        defaults = vars(value)["_field_defaults"]
        return [value.__name__, value._fields, {name: _content(one) for name, one in defaults.items()}]
    if isinstance(value, constexpr):
        return ["constexpr", _content(value.value)]
    if isinstance(value, (tuple, list)):
        return [_content(one) for one in value]
    if is_dataclass(value) and not isinstance(value, type):
        return [name_of(type(value)), {name: _content(getattr(value, name)) for name in _facts(type(value))}]
    of_triton = type(value).__module__.startswith("triton.") and " at 0x" not in repr(value)
    if of_triton or value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    raise TypeError(f"a kernel names {value!r}, whose content no key can tell")


def _facts(kind: Any) -> list[str]:
    """Names of a dataclass's fields and properties."""
    found = [name for name, member in inspect.getmembers(kind) if isinstance(member, property)]
    return [one.name for one in fields(kind)] + found


def name_of(value: Any) -> str:
    """A value's module and name, as far as it has them."""
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"


# ---- what compiles it ------------------------------------------------------------------------------------------------
@cache
def compiler() -> str:
    """The hash of Triton's Python sources, by their names inside the package."""
    root = Path(triton.__file__).parent
    # backends of a Triton that was built in place are links to folders elsewhere
    below = (Path(folder) for part in PARTS for folder, _, _ in os.walk(root / part, followlinks=True))
    files = [path for folder in (root, *below) for path in folder.glob("*.py")]
    return digest(sorted((path.relative_to(root).as_posix(), _file_digest(path)) for path in files))


def target_content(target: GPUTarget, options: dict[str, Any]) -> list[Any]:
    """The target, what the compiler is told, and the assembler; libraries that are linked by their bytes."""
    backend = make_backend(target)
    told = dict(vars(backend.parse_options(dict(options))))
    told["extern_libs"] = {name: _file_digest(Path(path)) for name, path in dict(told.get("extern_libs") or ()).items()}
    return [target.backend, str(target.arch), target.warp_size, backend.hash(), sorted(map(_option, told.items()))]


def _option(item: tuple[str, Any]) -> tuple[str, str]:
    """An option's name and value; sets have no order of their own."""
    name, value = item
    return name, repr(sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value)


def environment() -> list[tuple[str, str]]:
    """The variables that Triton's compilers heed, where they are set."""
    beside = {name: os.environ[name] for name in BESIDE if name in os.environ}
    return sorted({**libtriton.get_cache_invalidating_env_vars(), **beside}.items())


@cache
def _file_digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()
