"""Formulas as plain Python, so that a hot path needs no sympy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from weft.errors import RelabelError
from weft.outside import is_name, shown

NAMES = "from math import sqrt\n"  # all that printed formulas call beside max


def source(name: str, formula: Any, arguments: Iterable[str], says: str = "", *, typed: bool = False) -> str:
    """A function of keyword arguments as Python source; `says` is its docstring."""
    import sympy as sp  # type: ignore[import-untyped,unused-ignore]

    arguments = list(arguments)
    wrong = next((x for x in (name, *arguments, *map(str, formula.free_symbols)) if not is_name(x)), None)
    if wrong is not None or '"""' in says or "\\" in says:
        cure = "name axes and arrays by letters, digits and underscores"
        raise RelabelError(f"the source of {shown(name)}", f"{shown(repr(wrong or says))} cannot stand in it", cure)
    given = ", ".join(f"{x}: float" if typed else x for x in arguments)
    doc = f'    """{says}"""\n' if says else ""
    body = sp.pycode(formula, fully_qualified_modules=False)
    return f"def {name}(*, {given}){' -> float' if typed else ''}:\n{doc}    return {body}\n"


def compiled(formulas: Mapping[str, Any], arguments: Iterable[str]) -> dict[str, Callable[..., float]]:
    """The formulas as Python functions of the same keyword arguments."""
    arguments = list(arguments)
    space: dict[str, Any] = {}
    exec(NAMES + "\n".join(source(name, formula, arguments) for name, formula in formulas.items()), space)
    return {name: space[name] for name in formulas}
