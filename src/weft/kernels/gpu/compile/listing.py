"""A kernel for people to read: its entry, then each fragment that it reaches, without branches that are not compiled.

Fragments are found in the sources of modules, so that neither Triton nor a card is needed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from weft.kernels.gpu.compile.folding import folded


def listing(entry: str, constants: Mapping[str, Any]) -> str:
    """The text of an entry and of its fragments. constants: what names in fragments stand for, see `folding`."""
    parts = [entry.rstrip()]
    for module, text in fragments(entry, constants):
        parts.append(f"# {module}\n{text.rstrip()}")
    return "\n\n\n".join(parts) + "\n"


def fragments(entry: str, constants: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(module, text) of each fragment that an entry reaches, in the order in which they are first named."""
    met: set[tuple[str, str]] = set()
    waiting = list(_named(ast.parse(entry), _imported(ast.parse(entry))))
    while waiting:
        module, name = waiting.pop(0)
        if (module, name) in met or name not in _functions(module):
            continue
        met.add((module, name))
        text = folded(_functions(module)[name], constants)
        yield module, text
        waiting = [*_named(ast.parse(text), _known(module)), *waiting]


def _named(tree: ast.AST, known: Mapping[str, tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """(module, name) of what a text names, in its order."""
    parts = {node.value: node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id in known]
    for node in sorted(names, key=lambda node: (node.lineno, node.col_offset)):
        module, name = known[node.id]
        of_module = node in parts and _is_module(f"{module}.{name}")
        yield (f"{module}.{name}", parts[node]) if of_module else (module, name)


@cache
def _known(module: str) -> dict[str, tuple[str, str]]:
    """Where names of a module come from: name -> (module, name there)."""
    return _imported(_tree(module)) | {name: (module, name) for name in _functions(module)}


def _imported(tree: ast.Module) -> dict[str, tuple[str, str]]:
    return {
        one.asname or one.name: (node.module, one.name)
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("weft.")
        for one in node.names
    }


@cache
def _functions(module: str) -> dict[str, str]:
    """The texts of a module's functions for GPUs, with their decorators."""
    lines = _source(module).splitlines()
    return {
        node.name: "\n".join(lines[node.decorator_list[0].lineno - 1 : node.end_lineno]) + "\n"
        for node in _tree(module).body
        if isinstance(node, ast.FunctionDef)
        and any(ast.unparse(x) in ("triton.jit", "gluon.jit") for x in node.decorator_list)
    }


@cache
def _is_module(name: str) -> bool:
    """Whether a name is that of a module; its parent is one of weft's."""
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # the parent is no package
        return False


def _tree(module: str) -> ast.Module:
    return ast.parse(_source(module))


@cache
def _source(module: str) -> str:
    found = find_spec(module)
    if found is None or found.origin is None:
        raise ModuleNotFoundError(f"no source of {module}, which a kernel's entry imports from")
    return Path(found.origin).read_text(encoding="utf-8")
