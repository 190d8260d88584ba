"""What a backend is, and the list of backends.

`reasons_against` is the one statement of what a backend can do: empty means yes. Choice, error texts and skipped tests
all read it. A backend named by the user is used or refused; "auto" takes the first without a reason against it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Protocol

from weft.errors import OptionError, UnsupportedKernel
from weft.planning.problem import DTYPES, Problem


@dataclass(frozen=True)
class Reason:
    """Why a backend cannot run a problem, and what would help."""

    why: str
    cure: str


class Backend(Protocol):
    """One way to run plans."""

    name: str

    def reasons_against(self, problem: Problem) -> tuple[Reason, ...]:
        """Empty if the backend can run the problem."""
        ...

    def load(self) -> ModuleType:
        """The module with `forward` and `backward`; imports a framework."""
        ...


@dataclass(frozen=True)
class CpuBackend:
    """Blocks of queries over slices of keys, through torch's matrix products."""

    name: str = "cpu"

    def reasons_against(self, problem: Problem) -> tuple[Reason, ...]:
        reasons = []
        if problem.device != "cpu":
            reasons.append(Reason(f"the tensors are on {problem.device}", "move q, k and v to the CPU"))
        if problem.dtype not in DTYPES:
            reasons.append(Reason(f"{problem.dtype} is not a type it computes in", f"use one of {', '.join(DTYPES)}"))
        return tuple(reasons)

    @cache  # noqa: B019 - a module, loaded once
    def load(self) -> ModuleType:
        return import_module("weft.kernels.cpu.run")


BACKENDS: tuple[Backend, ...] = (CpuBackend(),)


def choose(name: str, problem: Problem) -> Backend:
    """The backend of that name, or for "auto" the first that can run the problem; else UnsupportedKernel."""
    named = [b for b in BACKENDS if name in ("auto", b.name)]
    if not named:
        known = ", ".join(["'auto'", *(repr(b.name) for b in BACKENDS)])
        raise OptionError(f"attention(backend={name!r})", "there is no such backend", f"use one of {known}")
    refused = []
    for backend in named:
        reasons = backend.reasons_against(problem)
        if not reasons:
            return backend
        refused += [(f"{backend.name}: {r.why}", r.cure) for r in reasons]
    raise UnsupportedKernel(
        f"attention on {problem}", "; ".join(why for why, _ in refused), "; or ".join(cure for _, cure in refused)
    )
