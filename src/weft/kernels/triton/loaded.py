"""Tables of waves on the device."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from weft.kernels.triton.turns import in_turns
from weft.kernels.triton.waves import Wave, Waves, plan_waves
from weft.planning.attention_plan import Share
from weft.planning.problem import Problem


@dataclass(frozen=True, eq=False)
class Loaded:
    """The waves of one direction, their tables on the device; slots: see `Prepared`."""

    plan: Waves
    waves: tuple[tuple[Wave, torch.Tensor], ...]
    slots: torch.Tensor | None


@lru_cache(maxsize=128)
def loaded(
    shares: tuple[Share, ...], problem: Problem, transposed: bool, device: torch.device, slots: int | None = None,
    programs: int = 0,
) -> Loaded:  # fmt: skip
    """The tables of one direction, put on the device once; transposed: they walk keys; slots: see `plan_waves`;
    programs: that take blocks in turn, see `in_turns`.
    """
    found = plan_waves(shares, problem, transposed, slots)
    turns = (in_turns(wave, programs) for wave in found.waves)
    waves = tuple((w, torch.from_numpy(w.words).to(device)) for w in turns)
    if found.met is None:
        return Loaded(found, waves, None)
    slots = np.where(found.met, np.cumsum(found.met) - 1, -1)
    return Loaded(found, waves, torch.from_numpy(slots.astype(np.int32)).to(device))
