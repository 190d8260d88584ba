"""NATTEN's questions for tile shapes of its kernels. None of these kernels is here, so every list is empty.

NATTEN answers with an empty list too where a kernel cannot run. Loops over the shapes then do nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor


def _none(name: str) -> Callable[..., list[Any]]:
    def configs(query: Tensor, key: Tensor, value: Tensor, torch_compile: bool = False) -> list[Any]:
        """Tile shapes of a kernel of NATTEN's: an empty list, since weft plans its own tiles."""
        return []

    configs.__name__ = configs.__qualname__ = name
    return configs


get_configs_for_cutlass_fmha = _none("get_configs_for_cutlass_fmha")
get_configs_for_cutlass_fna = _none("get_configs_for_cutlass_fna")
get_configs_for_cutlass_hopper_fmha = _none("get_configs_for_cutlass_hopper_fmha")
get_configs_for_cutlass_hopper_fna = _none("get_configs_for_cutlass_hopper_fna")
get_configs_for_cutlass_blackwell_fmha = _none("get_configs_for_cutlass_blackwell_fmha")
get_configs_for_cutlass_blackwell_fna = _none("get_configs_for_cutlass_blackwell_fna")
get_configs_for_flex_fmha = _none("get_configs_for_flex_fmha")
get_configs_for_flex_fna = _none("get_configs_for_flex_fna")
get_bwd_configs_for_cutlass_fmha = _none("get_bwd_configs_for_cutlass_fmha")
get_bwd_configs_for_cutlass_fna = _none("get_bwd_configs_for_cutlass_fna")
get_bwd_configs_for_cutlass_hopper_fmha = _none("get_bwd_configs_for_cutlass_hopper_fmha")
get_bwd_configs_for_cutlass_hopper_fna = _none("get_bwd_configs_for_cutlass_hopper_fna")
get_bwd_configs_for_cutlass_blackwell_fmha = _none("get_bwd_configs_for_cutlass_blackwell_fmha")
get_bwd_configs_for_cutlass_blackwell_fna = _none("get_bwd_configs_for_cutlass_blackwell_fna")
