"""NATTEN's interface, computed by weft: `import weft.integrations.natten as natten`.

The operations, the modules (with the same state keys) and the switches of NATTEN 0.21.7. Arguments that choose NATTEN's
kernels and tiles are accepted and have no effect, which a warning says once. docs/coming-natten.md lists what is
not the same.
"""

from weft.integrations.natten.configs import (
    get_bwd_configs_for_cutlass_blackwell_fmha,
    get_bwd_configs_for_cutlass_blackwell_fna,
    get_bwd_configs_for_cutlass_fmha,
    get_bwd_configs_for_cutlass_fna,
    get_bwd_configs_for_cutlass_hopper_fmha,
    get_bwd_configs_for_cutlass_hopper_fna,
    get_configs_for_cutlass_blackwell_fmha,
    get_configs_for_cutlass_blackwell_fna,
    get_configs_for_cutlass_fmha,
    get_configs_for_cutlass_fna,
    get_configs_for_cutlass_hopper_fmha,
    get_configs_for_cutlass_hopper_fna,
    get_configs_for_flex_fmha,
    get_configs_for_flex_fna,
)
from weft.integrations.natten.context import (
    allow_flex_compile,
    allow_flex_compile_backprop,
    are_deterministic_algorithms_enabled,
    disable_flex_compile,
    disable_flex_compile_backprop,
    get_memory_usage_preference,
    is_flex_compile_allowed,
    is_flex_compile_backprop_allowed,
    is_kv_parallelism_in_fused_na_enabled,
    is_memory_usage_default,
    is_memory_usage_strict,
    is_memory_usage_unrestricted,
    set_memory_usage_preference,
    use_deterministic_algorithms,
    use_kv_parallelism_in_fused_na,
)
from weft.integrations.natten.functional import attention, merge_attentions, na1d, na2d, na3d
from weft.integrations.natten.modules import NeighborhoodAttention1D, NeighborhoodAttention2D, NeighborhoodAttention3D

__version__ = "0.21.7"  # of the interface
HAS_LIBNATTEN = True  # what needs libnatten there runs here

__all__ = [
    "HAS_LIBNATTEN",
    "NeighborhoodAttention1D",
    "NeighborhoodAttention2D",
    "NeighborhoodAttention3D",
    "__version__",
    "attention",
    "merge_attentions",
    "na1d",
    "na2d",
    "na3d",
    "allow_flex_compile",
    "allow_flex_compile_backprop",
    "are_deterministic_algorithms_enabled",
    "disable_flex_compile",
    "disable_flex_compile_backprop",
    "get_memory_usage_preference",
    "is_flex_compile_allowed",
    "is_flex_compile_backprop_allowed",
    "is_kv_parallelism_in_fused_na_enabled",
    "is_memory_usage_default",
    "is_memory_usage_strict",
    "is_memory_usage_unrestricted",
    "set_memory_usage_preference",
    "use_deterministic_algorithms",
    "use_kv_parallelism_in_fused_na",
    "get_bwd_configs_for_cutlass_blackwell_fmha",
    "get_bwd_configs_for_cutlass_blackwell_fna",
    "get_bwd_configs_for_cutlass_fmha",
    "get_bwd_configs_for_cutlass_fna",
    "get_bwd_configs_for_cutlass_hopper_fmha",
    "get_bwd_configs_for_cutlass_hopper_fna",
    "get_configs_for_cutlass_blackwell_fmha",
    "get_configs_for_cutlass_blackwell_fna",
    "get_configs_for_cutlass_fmha",
    "get_configs_for_cutlass_fna",
    "get_configs_for_cutlass_hopper_fmha",
    "get_configs_for_cutlass_hopper_fna",
    "get_configs_for_flex_fmha",
    "get_configs_for_flex_fna",
]
