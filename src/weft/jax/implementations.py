"""What can run attention from JAX: implementations by name, each with its reasons against a request.

Another way to run it, as kernels launched through jax.ffi, is one more entry of IMPLEMENTATIONS: it plans a pattern in
its own way, and what it plans says by the class of its structure whose it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
from jax import Array

from weft.errors import OptionError, UnsupportedKernel
from weft.jax import operator
from weft.jax.mask import PlannedMask, planned
from weft.jax.operator import Call
from weft.jax.structure import Structure
from weft.pattern.algebra import Pattern
from weft.planning.problem import Problem

GPUS = ("gpu", "cuda", "rocm")


@dataclass(frozen=True)
class Request:
    """What is asked for. platform: "cpu", "gpu", "tpu"; planned: the structure of a mask that was planned before."""

    problem: Problem
    platform: str
    planned: Any = None


class Implementation(Protocol):
    """One way to run attention."""

    def reason_against(self, request: Request) -> tuple[str, str] | None:
        """Why it cannot run a request, and what would help; None if it can."""
        ...

    def plan(self, pattern: Pattern, problem: Problem, like: Any = None) -> PlannedMask:
        """A pattern as it runs it, in the structure `like` if that is given."""
        ...

    def attend(
        self, call: Call, q: Array, k: Array, v: Array, slopes: Array | None, tables: Any
    ) -> tuple[Array, Array]:
        """As `weft.jax.operator.attend`: differentiable, and right under every transformation of JAX."""
        ...


@dataclass(frozen=True)
class Blocks:
    """Blocks of jax.numpy, compiled by XLA. only: the platform that it is offered for; None: any."""

    only: str | None = None

    def reason_against(self, request: Request) -> tuple[str, str] | None:
        """Another platform than the one asked for by name; a mask that was planned for kernels."""
        if request.planned is not None and not isinstance(request.planned, Structure):
            return "the mask was planned for another implementation", "plan it for this one, or pass the pattern"
        if self.only in (None, request.platform):
            return None
        return f"the arrays are for {request.platform}", "move them to the CPU, or use implementation='xla'"

    plan = staticmethod(planned)
    attend = staticmethod(operator.attend)


@dataclass(frozen=True)
class Triton:
    """Weft's GPU kernels, which have no binding to JAX yet."""

    def reason_against(self, request: Request) -> tuple[str, str] | None:
        """Always: there is no binding."""
        return (
            "weft's GPU kernels are not bound to JAX in this version",
            "use implementation='xla' (blocks of jax.numpy, slower than kernels)",
        )

    def plan(self, pattern: Pattern, problem: Problem, like: Any = None) -> PlannedMask:
        """Never called: see `reason_against`."""
        raise NotImplementedError

    def attend(
        self, call: Call, q: Array, k: Array, v: Array, slopes: Array | None, tables: Any
    ) -> tuple[Array, Array]:
        """Never called: see `reason_against`."""
        raise NotImplementedError


IMPLEMENTATIONS: dict[str, Implementation] = {"xla": Blocks(), "cpu": Blocks("cpu"), "triton": Triton()}


def names_of(implementation: Any) -> tuple[str, ...] | None:
    """The names asked for, in order; None where the choice is left. Raises OptionError for names that do not exist."""
    if implementation is None:
        return None
    names = (implementation,) if isinstance(implementation, str) else implementation
    if not isinstance(names, Sequence) or not names or not all(isinstance(name, str) for name in names):
        _unknown(implementation, "an implementation is chosen by name, or by several in order")
    for name in names:
        if name not in IMPLEMENTATIONS:
            _unknown(name, "there is no such implementation")
    return tuple(names)


def _unknown(asked: Any, wrong: str) -> None:
    known = ", ".join(map(repr, IMPLEMENTATIONS))
    raise OptionError(f"attention(implementation={asked!r})", wrong, f"use None, or one or several of {known}")


def choose(names: tuple[str, ...] | None, request: Request) -> str:
    """The first of the names without a reason against the request; of all on a GPU "triton", elsewhere "xla"."""
    if names is None:
        names = ("triton",) if request.platform in GPUS else ("xla",)
    refused = []
    for name in names:
        reason = IMPLEMENTATIONS[name].reason_against(request)
        if reason is None:
            return name
        refused.append((f"{name}: {reason[0]}", reason[1]))
    raise UnsupportedKernel(
        f"attention(implementation={', '.join(names)}) on {request.platform}",
        "; ".join(why for why, _ in refused),
        "; or ".join(cure for _, cure in refused),
    )


def platform_of(arrays: Sequence[Any]) -> str:
    """Where concrete arrays lie; of traced ones and of shapes the platform that JAX computes on by default."""
    for x in arrays:
        if isinstance(x, Array) and not isinstance(x, jax.core.Tracer):
            return str(next(iter(x.devices())).platform)
    return str(jax.default_backend())
