"""NATTEN's global switches. Only the deterministic mode changes what runs; the others are kept and answered."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch

from weft.errors import OptionError


class MemoryUsagePreference(Enum):
    """How much memory NATTEN's backward may take; without effect here."""

    Default = 0
    Strict = 1
    Unrestricted = 2


@dataclass
class _State:
    deterministic: bool = False
    kv_parallelism: bool = True
    memory: MemoryUsagePreference = MemoryUsagePreference.Default
    flex_compile: bool = False
    flex_compile_backprop: bool = False


_state = _State()


def use_deterministic_algorithms(mode: bool = True) -> None:
    """Make gradients the same bits each time: `weft.attention(..., deterministic=True)`."""
    _state.deterministic = mode


def are_deterministic_algorithms_enabled() -> bool:
    """Whether `use_deterministic_algorithms` is on."""
    return _state.deterministic


def use_kv_parallelism_in_fused_na(mode: bool = True) -> None:
    """Kept, without effect. Raises RuntimeError where the deterministic mode forbids it in NATTEN too."""
    if mode and torch.are_deterministic_algorithms_enabled():
        return
    if mode and _state.deterministic:
        raise RuntimeError(
            "use_kv_parallelism_in_fused_na(True)\n  wrong: the deterministic mode is on, which excludes it"
            "\n  do:    call use_deterministic_algorithms(False) first"
        )
    _state.kv_parallelism = mode


def is_kv_parallelism_in_fused_na_enabled() -> bool:
    """What `use_kv_parallelism_in_fused_na` was told."""
    return _state.kv_parallelism


def set_memory_usage_preference(pref: str = "default") -> None:
    """Kept, without effect. pref: "default", "strict" or "unrestricted"."""
    known = {preference.name.lower(): preference for preference in MemoryUsagePreference}
    if pref not in known:
        raise OptionError(
            f"set_memory_usage_preference({pref!r})", "there is no such preference", f"pass one of {', '.join(known)}"
        )
    _state.memory = known[pref]


def get_memory_usage_preference() -> MemoryUsagePreference:
    """What `set_memory_usage_preference` was told."""
    return _state.memory


def is_memory_usage_default() -> bool:
    """Whether the preference is "default"."""
    return _state.memory is MemoryUsagePreference.Default


def is_memory_usage_strict() -> bool:
    """Whether the preference is "strict"."""
    return _state.memory is MemoryUsagePreference.Strict


def is_memory_usage_unrestricted() -> bool:
    """Whether the preference is "unrestricted"."""
    return _state.memory is MemoryUsagePreference.Unrestricted


def allow_flex_compile(mode: bool = True, backprop: bool = False) -> None:
    """Kept, without effect: FlexAttention is not used here."""
    _state.flex_compile, _state.flex_compile_backprop = mode, mode and backprop


def allow_flex_compile_backprop(mode: bool = True) -> None:
    """Kept, without effect."""
    allow_flex_compile(_state.flex_compile, mode)


def disable_flex_compile() -> None:
    """Kept, without effect."""
    allow_flex_compile(False)


def disable_flex_compile_backprop() -> None:
    """Kept, without effect."""
    allow_flex_compile(_state.flex_compile, False)


def is_flex_compile_allowed() -> bool:
    """What `allow_flex_compile` was told."""
    return _state.flex_compile


def is_flex_compile_backprop_allowed() -> bool:
    """What `allow_flex_compile_backprop` was told."""
    return _state.flex_compile_backprop
