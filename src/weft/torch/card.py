"""The GPU at hand: what its driver calls it, the numbers that plans take, and what made the kernels that run on it."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from pathlib import Path
from types import ModuleType

import torch
import triton
from triton.runtime import driver as triton_driver

from weft.errors import UnsupportedKernel
from weft.kernels import gpu
from weft.kernels.backend import Card
from weft.outside import shown
from weft.target import gpu_like
from weft.torch import bind, driver, launcher

OLDEST = (8, 0)  # compute capability of NVIDIA's cards
# Modules and folders that change no kernel that a tuner measures.
APART = {"__init__", "ahead", "filling", "gemm", "kernels", "keys", "oracle", "sinks", "split_kv"}


def at_hand() -> Card | None:
    """The current device; None where torch finds none."""
    return card_of(torch.cuda.current_device()) if torch.cuda.is_available() else None


@cache
def card_of(device: int) -> Card:
    """The device of that number. Raises UnsupportedKernel for a card that Triton makes no kernels for."""
    found = torch.cuda.get_device_properties(device)
    rocm = torch.version.hip is not None
    if not rocm and (found.major, found.minor) < OLDEST:
        raise UnsupportedKernel(
            f"attention on {found.name}",
            f"its compute capability is {found.major}.{found.minor}, and kernels need {OLDEST[0]}.{OLDEST[1]}",
            "use a newer GPU, or move q, k and v to the CPU",
        )
    architecture = found.gcnArchName.split(":")[0] if rocm else f"sm_{found.major}{found.minor}"
    name, shared = shown(found.name), shared_memory(device)  # which torch tells from 2.12 on
    return Card(name, gpu_like(name, architecture, found.multi_processor_count, shared))


def shared_memory(device: int) -> int:
    """Bytes of shared memory that a block may have."""
    if driver.library() is not None:
        return driver.shared_memory(device)
    return triton_driver.active.utils.get_device_properties(device)["max_shared_mem"]


@cache
def versions() -> dict[str, str]:
    """What evidence of a kernel's time depends on, beside pattern, problem and card: Triton and the text of the modules
    that make and start kernels. A remark changed in one of them counts as another version.
    """
    made = sha256()
    for path in (*_sources(gpu), *(Path(str(one.__file__)) for one in (bind, driver, launcher))):
        made.update(path.read_bytes())
    return {"kernels": made.hexdigest()[:16], "triton": triton.__version__}


def _sources(package: ModuleType) -> list[Path]:
    root = Path(package.__path__[0])
    found = {path: {*path.relative_to(root).parent.parts, path.stem} for path in root.rglob("*.py")}
    return sorted(path for path, names in found.items() if not names & APART)
