"""Machines as napkins see them: what a level of a GPU holds, and how fast it computes."""

from __future__ import annotations

from weft.errors import RelabelError
from weft.target import GPUS, Gpu


def rate(gpu: Gpu, dtype: str) -> float:
    """Tensor-core operations a second."""
    found = dict(gpu.flops)
    if dtype not in found:
        raise RelabelError(
            f"the rate of {dtype} on {gpu.name}", "it has no tensor cores for it", f"pass {', '.join(found)}"
        )
    return found[dtype]


def machine(name: str) -> Gpu:
    """A GPU by its name."""
    if name not in GPUS:
        raise RelabelError(f"machine {name!r}", "it is not known", f"name one of {', '.join(GPUS)}")
    return GPUS[name]
