"""Targets: the numbers of one piece of hardware. Plans, diagrams and costs take all constants from here.

The planner compares candidates with them; nothing else depends on them, so a wrong number costs time, never a result.
Figures of GPUs are the vendors', for one device without sparsity; what was measured beside them says where.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import pairwise

KIB = 1024
MMA_PER_CLOCK = {"sm_80": 2048, "sm_89": 1024, "sm_90": 4096, "sm_100": 8192, "gfx942": 2048}  # fp16, of one processor


@dataclass(frozen=True)
class Target:
    """A CPU, as the cost model sees it.

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
    """A GPU. Tiles are computed whole, by kernels that Triton compiles for the card.

    bandwidth: bytes a second from global memory; l2, l2_bandwidth: bytes of the cache before it, and a second from it.
    Vendors do not say the second: the H200's is measured, others are guesses in proportion to processors and clocks.
    shared, registers: bytes of one processor. flops: tensor-core operations a second by dtype. exponentials, fma16:
    operations a clock of one processor. launch_seconds: from one kernel's end to the next one's start, and a kernel's
    own beginning and end.
    """

    name: str
    architecture: str
    processors: int
    bandwidth: float
    l2: int
    l2_bandwidth: float
    shared: int
    registers: int
    flops: tuple[tuple[str, float], ...]
    exponentials: int = 16
    fma16: int = 256
    launch_seconds: float = 8e-6

    @property
    def clock(self) -> float:
        """Clocks a second at which the tensor-core rate holds."""
        return dict(self.flops)["fp16"] / self.processors / MMA_PER_CLOCK[self.architecture]

    @property
    def fma_flops(self) -> float:
        """Operations a second in float32, outside tensor cores."""
        return self.processors * self.fma16 * self.clock

    def limit(self, level: str) -> int:
        """Bytes that one processor holds at a level."""
        return {"shared": self.shared, "register": self.registers}[level]


_MIB = KIB * KIB
_HOPPER = (("fp16", 989e12), ("fp8", 1979e12), ("tf32", 494e12))
GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("h200", "sm_90", 132, 4.8e12, 50 * _MIB, 8.9e12, 227 * KIB, 256 * KIB, _HOPPER),
        Gpu("h100", "sm_90", 132, 3.35e12, 50 * _MIB, 8.9e12, 227 * KIB, 256 * KIB, _HOPPER),
        Gpu("a100", "sm_80", 108, 2.039e12, 40 * _MIB, 5e12, 163 * KIB, 256 * KIB,
            (("fp16", 312e12), ("tf32", 156e12))),
        Gpu("b200", "sm_100", 148, 8e12, 126 * _MIB, 1e13, 227 * KIB, 256 * KIB,
            (("fp16", 2250e12), ("fp8", 4500e12), ("tf32", 1125e12))),
        Gpu("mi300x", "gfx942", 304, 5.3e12, 256 * _MIB, 1.7e13, 64 * KIB, 512 * KIB,
            (("fp16", 1307e12), ("fp8", 2615e12), ("tf32", 654e12))),
        Gpu("rtx4090", "sm_89", 128, 1.008e12, 72 * _MIB, 5e12, 99 * KIB, 256 * KIB,
            (("fp16", 165e12), ("fp8", 330e12), ("tf32", 82.6e12))),
    )
}  # fmt: skip
GPU = GPUS["h200"]  # for whoever plans without saying for which


def gpu_like(name: str, architecture: str, processors: int, shared: int = 0) -> Gpu:
    """The numbers of a card: known ones by its name, else those of the nearest architecture scaled to its processors.

    name: as the driver says it. shared: bytes of shared memory for a program, 0 if not known.
    """
    words = re.findall("[a-z0-9]+", name.lower())
    said = {*words, *("".join(pair) for pair in pairwise(words))}
    known = next((gpu for gpu in GPUS.values() if gpu.name in said), None)
    if known is not None and known.processors == processors:
        return known
    near = known or min(GPUS.values(), key=lambda gpu: _distance(gpu.architecture, architecture))
    share = processors / near.processors  # of rates, so that the clock stays
    flops = tuple((dtype, rate * share) for dtype, rate in near.flops)
    return replace(
        near, name=name, processors=processors, bandwidth=near.bandwidth * share, flops=flops,
        shared=shared or near.shared,
    )  # fmt: skip


def _distance(one: str, other: str) -> tuple[bool, int]:
    """First the vendor ("sm_90", "gfx942"), then the number."""
    (vendor, number), (vendor_2, number_2) = (re.findall("[a-z]+|[0-9a-f]+$", x) for x in (one, other))
    return vendor != vendor_2, abs(int(number, 16) - int(number_2, 16))
