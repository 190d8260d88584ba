"""What an adapter is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

from weft.testing.masks import Band, Full
from weft.testing.workloads import Workload

ATTENTION, CEILING, PLAN = "attention", "ceiling", "plan"


@dataclass(frozen=True)
class Prepared:
    """run(q, k, v) -> out in the peer's layout; of a ceiling or a plan: run() -> anything.

    plan_ms: what had to be made for this mask before the first call, as its users make it, once everything is compiled.
    A plan has none, as it is that. work: (operations, bytes) of a ceiling's call.
    """

    run: Callable[..., Any]
    plan_ms: float | None = None
    work: tuple[float, float] | None = None


@dataclass(frozen=True)
class Peer:
    """One way to compute attention, or a yardstick.

    layout: "bhsd" (B, H, length, D) or "bshd" (B, length, H, D): how it wants its tensors laid out, so that none is
    copied. kind: ATTENTION, or a yardstick, which has no direction. package: whose version is recorded. default:
    measured unless others are named.
    """

    name: str
    package: str = "torch"
    layout: str = "bhsd"
    kind: str = ATTENTION
    default: bool = True

    def reason_absent(self, device: str) -> str:
        """Why it cannot run on this machine and device ("cpu" or "cuda") at all; empty if it can."""
        raise NotImplementedError

    def reasons_against(self, workload: Workload, direction: str, device: str) -> list[str]:
        """Why it cannot run this problem; empty if it can. direction: "fwd" or "bwd"."""
        return []

    def different_mask(self, workload: Workload) -> str:
        """How the mask that it computes differs from the workload's; empty if it does not."""
        return ""

    def prepare(self, workload: Workload, tensors: Any) -> Prepared:
        """Everything before the first call. tensors: a `weft.bench.inputs.Tensors`."""
        raise NotImplementedError

    @property
    def directions(self) -> tuple[str, ...]:
        """What there is to measure: a yardstick has no direction."""
        return ("fwd", "bwd") if self.kind == ATTENTION else ("any",)

    def version(self) -> str:
        """Of its package."""
        try:
            return version(self.package)
        except PackageNotFoundError:
            return ""


def missing(package: str, device: str, only: str = "cuda") -> str:
    """Why a package that runs on one kind of device only is absent; empty if it is there."""
    if device != only:
        return f"it runs on {only} only"
    try:
        found = find_spec(package)
    except ModuleNotFoundError:  # the parent of a dotted name
        found = None
    return "" if found else f"{package.partition('.')[0]} is not installed"


def is_full(workload: Workload) -> bool:
    """Every query sees every key; one causal query at the end does, too."""
    return workload.mask == Full() or (workload.mask == Band() and workload.m == 1)


def is_causal(workload: Workload) -> bool:
    """Plain causal over aligned lengths."""
    return workload.mask == Band() and workload.m == workload.n


def dense_mask(workload: Workload, tensors: Any) -> Any:
    """The boolean mask (M, N), or (1, H, M, N) where heads differ, on the device; made of the formula."""
    import torch

    predicate = workload.predicate(tensors.table)
    q, k = tensors.arange(workload.m)[:, None], tensors.arange(workload.n)[None, :]
    heads = [
        predicate(0, head, q, k).expand(workload.m, workload.n)
        for head in (range(workload.q_heads) if workload.per_head else [0])
    ]
    return torch.stack(heads)[None] if workload.per_head else heads[0].contiguous()
