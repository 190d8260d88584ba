"""Targets: the numbers of one piece of hardware that plans for a CPU are compared by (those of GPUs stand in
planning/device, those of diagrams in napkin/machine).

The planner compares candidates with them; nothing else depends on them, so a wrong number costs time, never a result.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """One machine, as the cost model sees it.

    matmul_flops: floating-point operations per second of a large float32 matrix product. softmax_seconds,
    mask_seconds: per score, for the soft maximum and for adding a mask. copy_seconds: per element staged.
    step_seconds: fixed cost of one query tile and one run of keys (interpreter, dispatch, thread wake-up).
    """

    name: str
    matmul_flops: float
    softmax_seconds: float
    mask_seconds: float
    copy_seconds: float
    step_seconds: float


# Two cores with AVX-512, torch 2.13 with MKL. Products, soft maximum and mask as in docs/decisions/0004; the cost of a
# copy and of a step are estimates that no benchmark backs yet.
CPU = Target("cpu", 1.8e11, 3.7e-10, 1e-10, 3e-10, 1.2e-4)


@dataclass(frozen=True)
class Gpu:
    """A family of GPUs, as plans see it: tiles are computed whole, by kernels that Triton compiles for the card."""

    name: str


GPU = Gpu("gpu")
