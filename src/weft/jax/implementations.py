"""What can run attention from JAX: implementations by name, each with its reasons against a request.

Another way to run it, as kernels launched through jax.ffi, is one more entry of IMPLEMENTATIONS. It plans a pattern in
its own way. What it plans says by the class of its structure whose it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import jax
from jax import Array
from jaxlib.version import __version_info__ as jaxlib_version

from weft.errors import OptionError, UnsupportedKernel, install_line
from weft.jax import operator
from weft.jax.mask import PlannedMask, planned
from weft.jax.operator import Call
from weft.jax.scores import Beside
from weft.jax.structure import Structure
from weft.kernels.backend import TritonBackend
from weft.pattern.algebra import Pattern
from weft.planning.problem import Problem

GPUS = ("gpu", "cuda", "rocm")
LEAST_JAXLIB = (0, 11, 1)  # whose custom call for Triton kernels takes machine code


@dataclass(frozen=True)
class Request:
    """What is asked for. platform: "cpu", "gpu", "tpu"; planned: the structure of a mask that was planned before;
    planning: that a mask be planned.
    """

    problem: Problem
    platform: str
    planned: Any = None
    planning: bool = False


class Implementation(Protocol):
    """One way to run attention."""

    def reason_against(self, request: Request) -> tuple[str, str] | None:
        """Why it cannot run a request, and what would help; None if it can."""
        ...

    def plan(self, pattern: Pattern, problem: Problem, like: Any = None) -> PlannedMask:
        """A pattern as it runs it, in the structure `like` if that is given."""
        ...

    def attend(self, call: Call, q: Array, k: Array, v: Array, beside: Beside, tables: Any) -> tuple[Array, Array]:
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
    """Weft's kernels for NVIDIA's GPUs, as custom calls that jaxlib executes."""

    def reason_against(self, request: Request) -> tuple[str, str] | None:
        """Another platform, a planned mask, a type or size that kernels do not compute, a package that is missing."""
        if request.platform not in ("gpu", "cuda"):
            cure = "move them to an NVIDIA GPU, pass target='h200' to lower for one, or use implementation='xla'"
            return f"the arrays are for {request.platform}", cure
        if request.planning or request.planned is not None:
            return "a planned mask is tables of blocks, not of kernels", "pass the pattern, or use implementation='xla'"
        found = TritonBackend().reasons_against(replace(request.problem, device="cuda"))
        for reason in (one for one in found if "torch" not in one.why):
            cure = install_line("jax-gpu") if "not installed" in reason.why else reason.cure
            return reason.why, f"{cure}, or use implementation='xla'"
        if jaxlib_version < LEAST_JAXLIB:
            asked = ".".join(map(str, LEAST_JAXLIB))
            return f"jaxlib takes machine code from {asked} on", "pip install -U jax, or use implementation='xla'"
        return None

    def plan(self, pattern: Pattern, problem: Problem, like: Any = None) -> PlannedMask:
        """Never called: see `reason_against`."""
        raise NotImplementedError

    def attend(self, call: Call, q: Array, k: Array, v: Array, beside: Beside, tables: Any) -> tuple[Array, Array]:
        """Never called: `weft.jax.gpu.attention` takes the pattern, not tables."""
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
