"""Machines as napkins see them: what a level holds and how fast it is fed.

Figures are the vendor's, for one device without sparsity; clocks follow from the rate of tensor cores.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.errors import RelabelError

FP16_PER_CLOCK = {"sm_80": 2048, "sm_90": 4096}  # floating-point operations of one processor's tensor cores
KIB = 1024


@dataclass(frozen=True)
class Machine:
    """One GPU. bandwidth: bytes a second from global memory. shared, registers: bytes of one processor.

    flops: tensor-core operations a second by dtype. exponentials, fma16: operations a clock of one processor.
    """

    name: str
    architecture: str
    processors: int
    bandwidth: float
    shared: int
    registers: int
    flops: tuple[tuple[str, float], ...]
    exponentials: int = 16
    fma16: int = 256

    def rate(self, dtype: str) -> float:
        """Tensor-core operations a second."""
        for name, rate in self.flops:
            if name == dtype:
                return rate
        names = ", ".join(name for name, _ in self.flops)
        raise RelabelError(f"the rate of {dtype} on {self.name}", "it has no tensor cores for it", f"pass {names}")

    @property
    def clock(self) -> float:
        """Clocks a second at which the tensor-core rate holds."""
        return self.rate("fp16") / self.processors / FP16_PER_CLOCK[self.architecture]

    def limit(self, level: str) -> int:
        """Bytes that one processor holds at a level."""
        return {"shared": self.shared, "register": self.registers}[level]


_HOPPER = (("fp16", 989e12), ("fp8", 1.98e15))
MACHINES = {
    "h100": Machine("h100", "sm_90", 132, 3.35e12, 227 * KIB, 256 * KIB, _HOPPER),
    "h200": Machine("h200", "sm_90", 132, 4.8e12, 227 * KIB, 256 * KIB, _HOPPER),
    "a100": Machine("a100", "sm_80", 108, 2.039e12, 163 * KIB, 256 * KIB, (("fp16", 312e12),)),
}


def machine(name: str) -> Machine:
    """A machine by its name."""
    if name not in MACHINES:
        raise RelabelError(f"machine {name!r}", "it is not known", f"name one of {', '.join(MACHINES)}")
    return MACHINES[name]
