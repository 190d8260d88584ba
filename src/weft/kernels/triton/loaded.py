"""Tables on the device.

Their memory is their maker's stream's: what that stream runs next may have it once they are forgotten, while kernels on
other streams still read it. So all are waited for before tables are forgotten together; one that others have pushed out
of a cache has been idle for as long as it took to plan these.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from weft.caching import cached, emptied_by
from weft.kernels.triton import launch
from weft.kernels.triton.turns import in_turns
from weft.kernels.triton.waves import Wave, Waves, plan_waves
from weft.planning.attention_plan import Share
from weft.planning.problem import Problem

_devices: set[torch.device] = set()  # GPUs with tables


def put(words: NDArray[np.int32], device: torch.device) -> torch.Tensor:
    """Integers that kernels read, on the device."""
    if device.type != "cpu":
        _devices.add(device)
    return torch.from_numpy(words).to(device)


def _wait() -> None:
    """For kernels that read tables. Not while a graph is captured, which runs none and may not be waited for."""
    if _devices and not launch.is_capturing():
        for device in _devices:
            torch.cuda.synchronize(device)


emptied_by(_wait)  # before the caches of tables, which are made below and in modules that import this one


@dataclass(frozen=True, eq=False)
class Loaded:
    """The waves of one direction, their tables on the device; slots: see `Prepared`."""

    plan: Waves
    waves: tuple[tuple[Wave, torch.Tensor], ...]
    slots: torch.Tensor | None


@cached(128)
def loaded(
    shares: tuple[Share, ...], problem: Problem, transposed: bool, device: torch.device, slots: int | None = None,
    programs: int = 0,
) -> Loaded:  # fmt: skip
    """The tables of one direction, put on the device once; transposed: they walk keys; slots: see `plan_waves`;
    programs: that take blocks in turn, see `in_turns`.
    """
    found = plan_waves(shares, problem, transposed, slots)
    turns = (in_turns(wave, programs) for wave in found.waves)
    waves = tuple((w, put(w.words, device)) for w in turns)
    if found.met is None:
        return Loaded(found, waves, None)
    slots = np.where(found.met, np.cumsum(found.met) - 1, -1)
    return Loaded(found, waves, put(slots.astype(np.int32), device))
