"""Arrays inside jax.shard_map: which mesh axes they vary over."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax


def axes_of(x: Any) -> frozenset[str]:
    """The manual mesh axes that an array varies over; none outside of jax.shard_map."""
    kind = jax.typeof(x)
    manual = getattr(kind, "manual_axis_type", None)  # JAX 0.10 and later; before that `vma`
    found: frozenset[str] = kind.vma if manual is None else manual.varying
    return found


def varying(tree: Any) -> Any:
    """All arrays, made to vary over the axes that any of them varies over."""
    axes = frozenset[str]().union(*map(axes_of, jax.tree.leaves(tree)))
    return jax.tree.map(lambda x: _cast(x, axes), tree) if axes else tree


def full(like: Array, shape: tuple[int, ...], value: float, dtype: Any) -> Array:
    """An array of one value that varies as `like` does."""
    return _cast(jnp.full(shape, value, dtype), axes_of(like))


def _cast(x: Any, axes: frozenset[str]) -> Any:
    missing = tuple(sorted(axes - axes_of(x)))
    return lax.pcast(x, missing, to="varying") if missing else x
