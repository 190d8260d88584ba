"""Tables on the device.

Launches know their addresses alone. Their memory is that of the stream which put them there, and what this stream runs
next may have it once nobody holds them, while kernels on other streams still read it. So memory that nobody holds any
more is kept until there is much of it, and given back after a wait for all kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from weakref import finalize

import numpy as np
import torch
from numpy.typing import NDArray

from weft.caching import cached
from weft.kernels.triton import launch
from weft.kernels.triton.turns import in_turns
from weft.kernels.triton.waves import Wave, Waves, plan_waves
from weft.planning.attention_plan import Share
from weft.planning.problem import Problem

MANY, LARGE = 256, 16 << 20  # tables that nobody holds, and their bytes, which are worth a wait
_idle: list[torch.UntypedStorage] = []
_lock = Lock()


def put(words: NDArray[np.int32], device: torch.device) -> torch.Tensor:
    """Integers that kernels read, on the device, for as long as this tensor is held before each launch."""
    _give_back()
    there = torch.from_numpy(words).to(device)
    if device.type != "cpu":
        finalize(there, _idle.append, there.untyped_storage()).atexit = False
    return there


def _give_back() -> None:
    """What nobody holds, if it is much. Not while a graph is captured: it runs no kernel, and may not be waited for."""
    with _lock:
        gone = _idle[:]  # others may add to it meanwhile
        much = len(gone) >= MANY or sum(one.nbytes() for one in gone) >= LARGE
        if not much or launch.is_capturing():
            return
        del _idle[: len(gone)]
    for device in {one.device for one in gone}:
        torch.cuda.synchronize(device)  # and then they go


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
