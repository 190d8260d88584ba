"""Gradients of tables that score functions read, from what kernels sum: by rows, columns, diagonals or pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from weft.errors import UnsupportedError
from weft.jax.rules import indices_of
from weft.kernels.gpu.layout import Options
from weft.kernels.gpu.score.slots import number_of
from weft.planning.attention_plan import AttentionPlan
from weft.planning.families.components import Components
from weft.score.reads import Read, reads_of
from weft.score.value import composed


def gradients_of_tables(
    options: Options, tables: Sequence[Array], made: Mapping[str, Array], plan: AttentionPlan
) -> list[Array]:
    """The gradient of each table that is wanted. made: outputs of a program, of which entries_0, ... are sums, see
    `weft.kernels.gpu.score.slots.entries_of` and `weft.kernels.gpu.programs.components`. Raises UnsupportedError where
    the same bits are asked.
    """
    if not any(options.wanted):
        return []
    if options.deterministic:
        raise UnsupportedError(
            "attention(deterministic=True) with gradients of slopes or tables on a GPU",
            "XLA adds to their entries in no fixed order",
            "leave deterministic out, stop the tables' gradients (jax.lax.stop_gradient), or use implementation='xla'",
        )
    found = [jnp.zeros(x.shape, jnp.float32) if want else None for x, want in zip(tables, options.wanted, strict=True)]
    for name, total in made.items():
        number = number_of(name)
        if number is None:
            continue
        read = reads_of(composed(options.score))[number]
        into = found[read.table]
        assert into is not None, "sums are of tables that are wanted"
        if name.startswith("tiles"):
            assert isinstance(plan.components, Components), "or there are no such sums"
            where, sums = _of_tiles(total, plan.components, options.shift), total.sum(0).reshape(1, total.shape[1], -1)
        elif name.startswith("offsets"):
            where, sums = _of_offsets(total, options.shift), total.reshape(*total.shape[:2], -1)
        elif read.kind in ("dense", "pairs", "offsets"):
            found[read.table] = into + total.reshape(into.shape)
            continue
        else:
            where, sums = _where(read, total, plan.problem.m, options.shift), total
        places = indices_of(options.score, read.step, where, tables)
        found[read.table] = _brought(into, sums, tuple(map(jnp.asarray, places)))
    return [x.astype(table.dtype) for x, table in zip(found, tables, strict=True) if x is not None]


def _brought(into: Array, total: Array, places: tuple[Array, ...]) -> Array:
    """into + the sums (B, Hq, rows, columns, diagonals or offsets), at the indices of a read."""
    places = tuple(x.reshape((1,) * (3 - x.ndim) + x.shape) for x in places)
    alike = tuple(axis for axis in range(3) if all(place.shape[axis] == 1 for place in places))
    return into.at[places].add(total.sum(alike, keepdims=True))


def _where(read: Read, total: Array, queries: int, shift: int) -> dict[str, Any]:
    """What the steps of an index read, for sums (B, Hq, length)."""
    at = jnp.arange(total.shape[2], dtype=jnp.int32)
    q = k = jnp.int32(0)
    if read.kind == "rows":
        q = at
    elif read.kind == "columns":
        k = at
    else:  # k - q rises from 1 - queries on
        q, k = jnp.maximum(queries - 1 - at, 0), jnp.maximum(at - (queries - 1), 0)
    return _at(total, q, k, shift)


def _of_tiles(total: Array, tiles: Components, shift: int) -> dict[str, Any]:
    """The same for sums (parts, Hq, tiles, SIZE, SIZE) of pairs. Those that are not live are 0."""
    q, k = np.broadcast_arrays(tiles.queries[:, :, None], tiles.keys[:, None, :])
    q, k = (jnp.asarray(np.maximum(x, 0).reshape(-1), jnp.int32) for x in (q, k))
    return _at(total.sum(0)[None], q, k, shift)


def _of_offsets(total: Array, shift: int) -> dict[str, Any]:
    """The same for sums (B, Hq, 2 X - 1, 2 Y - 1) over offsets on a grid, of two tokens that are so far apart."""
    q = k = jnp.zeros((), jnp.int32)
    for length in total.shape[2:]:
        apart, tokens = jnp.arange(length, dtype=jnp.int32) - length // 2, length // 2 + 1
        q, k = ((x[..., None] * tokens + jnp.maximum(far, 0)) for x, far in ((q, -apart), (k, apart)))
    return _at(total, q.reshape(-1), k.reshape(-1), shift)


def _at(total: Array, q: Array, k: Array, shift: int) -> dict[str, Any]:
    b, h = (jnp.arange(size, dtype=jnp.int32) for size in total.shape[:2])
    return {"b": b[:, None, None], "h": h[:, None], "q": q, "k": k, "shift": shift, "score": jnp.float32(0)}
