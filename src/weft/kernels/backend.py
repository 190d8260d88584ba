"""What a backend is, and the list of backends.

`reasons_against` is the one statement of what a backend can do: empty means yes. Choice, error texts and skipped tests
all read it. It knows no card: one that is at hand, and too old, `card` refuses. A backend named by the user is used or
refused; "auto" takes the first without a reason against it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Protocol

from weft.errors import OptionError, UnsupportedKernel, install_line
from weft.planning.attention_plan import AttentionPlan
from weft.planning.problem import DTYPES, Problem
from weft.planning.tiling import Direction, Part
from weft.settings import interpreted
from weft.target import CPU, GPU, Gpu, Target


@dataclass(frozen=True)
class Reason:
    """Why a backend cannot run a problem, and what would help."""

    why: str
    cure: str


@dataclass(frozen=True)
class Card:
    """A GPU at hand. name: as its driver says it."""

    name: str
    gpu: Gpu


@dataclass(frozen=True)
class Timing:
    """Seconds of repeated calls: the median, and between which the middle half of them lies."""

    seconds: float
    low: float
    high: float

    def clearly_below(self, other: Timing | None) -> bool:
        """Whether the middle halves of their calls do not meet; whatever runs is below what does not."""
        return other is None or self.high < other.low


class Meter(Protocol):
    """Times one problem's kernels on the card at hand, one part of a call at a time."""

    def prepare(self, direction: Direction, plans: Sequence[AttentionPlan]) -> None:
        """Begin to compile what will be asked for; returns at once."""
        ...

    def times(
        self, part: Part, plans: Sequence[AttentionPlan], until: float, rounds: int = 2
    ) -> list[Timing | str | None]:
        """For each plan its time, why it cannot run, or None: not compiled before `until` (of time.monotonic()).

        Plans take turns, `rounds` times.
        """
        ...


class Backend(Protocol):
    """One way to run plans."""

    @property
    def name(self) -> str:
        """What users choose it by."""
        ...

    @property
    def target(self) -> Target | Gpu:
        """What plans are for, where no card is at hand."""
        ...

    def reasons_against(self, problem: Problem, options: tuple[str, ...] = ()) -> tuple[Reason, ...]:
        """Empty if the backend can run the problem with these options, of those that not every backend has."""
        ...

    def load(self) -> ModuleType:
        """The module with `forward`, `backward` and `sink_gradient`; imports a framework.

        Also, or None: `ready_forward` and `ready`, what answers by launches alone, and `expect_gradients`, which begins
        to compile.
        """
        ...

    def card(self, device: str) -> Card | None:
        """The card that runs problems on that device, if kernels for it can be tuned; imports a framework. Raises
        UnsupportedKernel for one that no kernels are made for.
        """
        ...

    def versions(self) -> dict[str, str]:
        """What its kernels were made by: evidence of other versions says nothing of them."""
        ...

    def meter(self, plan: AttentionPlan) -> AbstractContextManager[Meter]:
        """What times the kernels of a plan's problem; only where there is a card."""
        ...


def _absent(package: str, extra: str) -> list[Reason]:
    """A reason if the package cannot be found; what is found may still break when it is loaded."""
    there = find_spec(package.lower()) is not None
    return [] if there else [Reason(f"{package} is not installed", install_line(extra))]


@dataclass(frozen=True)
class CpuBackend:
    """Blocks of queries over slices of keys, through torch's matrix products."""

    name: str = "cpu"
    target: Target = CPU

    def reasons_against(self, problem: Problem, options: tuple[str, ...] = ()) -> tuple[Reason, ...]:
        reasons = _absent("torch", "torch")
        if problem.device != "cpu":
            reasons.append(Reason(f"the tensors are on {problem.device}", "move q, k and v to the CPU"))
        if problem.dtype not in DTYPES:
            reasons.append(Reason(f"{problem.dtype} is not a type it computes in", f"use one of {', '.join(DTYPES)}"))
        if max(problem.m, problem.n) > MOST_TOKENS:
            reasons.append(Reason(f"there are more than {MOST_TOKENS} tokens", "use a shorter sequence"))
        return tuple(reasons)

    @cache  # noqa: B019 - a module, loaded once
    def load(self) -> ModuleType:
        return import_module("weft.kernels.cpu.run")

    def card(self, device: str) -> Card | None:
        return None

    def versions(self) -> dict[str, str]:
        return {}

    def meter(self, plan: AttentionPlan) -> AbstractContextManager[Meter]:
        raise NotImplementedError("a CPU's plan offers no tilings")


@dataclass(frozen=True)
class TritonBackend:
    """Generated Triton kernels, for CUDA and ROCm devices; on the CPU only under Triton's interpreter."""

    name: str = "triton"
    target: Gpu = GPU

    def reasons_against(self, problem: Problem, options: tuple[str, ...] = ()) -> tuple[Reason, ...]:
        reasons = [*_absent("torch", "torch"), *_absent("Triton", "gpu")]
        if problem.device != "cuda" and not (problem.device == "cpu" and interpreted()):
            cure = "move q, k and v to a GPU (or set TRITON_INTERPRET=1 to try kernels on the CPU)"
            reasons.append(Reason(f"the tensors are on {problem.device}", cure))
        if problem.dtype not in WIDTHS:
            cure = f"use one of {', '.join(WIDTHS)}"
            if problem.dtype == "float64":
                cure += ", or in float64 weft.attention(q.cpu(), k.cpu(), v.cpu(), mask).to(q.device)"
            reasons.append(Reason(f"{problem.dtype} is not a type it computes in", cure))
        if max(problem.d, problem.dv) > MAX_DIM:
            reasons.append(Reason(f"a head dimension is above {MAX_DIM}", "use smaller heads, or the CPU backend"))
        if max(problem.m, problem.n) >= MAX_LENGTH:
            reasons.append(Reason(f"there are {MAX_LENGTH} tokens or more", "use a shorter sequence"))
        return tuple(reasons)

    @cache  # noqa: B019 - a module, loaded once
    def load(self) -> ModuleType:
        return import_module("weft.torch.gpu")

    def card(self, device: str) -> Card | None:
        if device == "cpu":  # interpreted
            return None
        found: Card | None = import_module("weft.torch.card").at_hand()
        return found

    def versions(self) -> dict[str, str]:
        found: dict[str, str] = import_module("weft.torch.card").versions()
        return found

    def meter(self, plan: AttentionPlan) -> AbstractContextManager[Meter]:
        found: AbstractContextManager[Meter] = import_module("weft.torch.measure").DeviceMeter(plan)
        return found


WIDTHS = ("float32", "bfloat16", "float16")
MAX_DIM = 256
MOST_TOKENS = (1 << 31) - 1  # that 32-bit integers of a plan's tables reach
MAX_LENGTH = 1 << 29  # coordinates are 32-bit integers, with room for sums of two
BACKENDS: tuple[Backend, ...] = (CpuBackend(), TritonBackend())


def choose(name: str, problem: Problem, options: tuple[str, ...] = ()) -> Backend:
    """The backend of that name, or for "auto" the first that can run the problem with these options; else
    UnsupportedKernel.
    """
    named = [b for b in BACKENDS if name in ("auto", b.name)]
    if not named:
        known = ", ".join(["'auto'", *(repr(b.name) for b in BACKENDS)])
        raise OptionError(f"attention(backend={name!r})", "there is no such backend", f"use one of {known}")
    refused = []
    for backend in named:
        reasons = backend.reasons_against(problem, options)
        if not reasons:
            return backend
        refused += [(f"{backend.name}: {r.why}", r.cure) for r in reasons]
    raise UnsupportedKernel(
        f"attention on {problem}", "; ".join(why for why, _ in refused), "; or ".join(cure for _, cure in refused)
    )
