"""Values with named fields inside a kernel. Triton's `_aggregate` is private, and this module alone names it."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.core import _aggregate, base_value


def aggregate(cls: type) -> Any:
    """A class of values inside a kernel, with a constructor that takes its fields in order or by name.

    A field is annotated as `gl.tensor`, `gl.tuple`, `gl.constexpr`, a class of this kind, or `Any` for other values.
    Methods are `@gluon.jit` functions. They must not name their own class, since a kernel's key follows every name.
    Fields and methods of a plain base class come first.

    Example:
        @aggregate
        class Range:
            begin: gl.tensor
            end: gl.tensor
    """
    kinds = {
        name: kind for one in cls.__mro__[::-1] for name, kind in inspect.get_annotations(one, eval_str=True).items()
    }
    names = tuple(kinds)

    @gluon.constexpr_function
    def construct(self, *given, **named):  # type: ignore[no-untyped-def] # a function of Triton's
        fields = dict(zip(names, given, strict=False)) | named
        for name in names:
            known = isinstance(fields[name], base_value)
            setattr(self, name, fields[name] if known else gl.constexpr(fields[name]))

    cls.__annotations__ = {name: base_value if kind is Any else kind for name, kind in kinds.items()}
    cls.__init__ = construct  # type: ignore[misc]
    return _aggregate(cls)


@dataclass(frozen=True, repr=False)
class Constants:
    """A value whose fields and properties are constants inside a kernel."""

    value: Any

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "value":
            raise AttributeError(name)
        return gl.constexpr(getattr(self.value, name))

    def __repr__(self) -> str:
        return repr(self.value)


def constants(value: Any) -> gl.constexpr:
    """A frozen dataclass as kernels take it: `cfg.rows` is a constant there."""
    return gl.constexpr(Constants(value))
