"""Gradients of tables that score functions read, from what kernels sum: by rows, columns, diagonals or pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array

from weft.errors import UnsupportedError
from weft.jax.rules import indices_of
from weft.kernels.gpu.layout import Options
from weft.score.reads import Read, reads_of
from weft.score.value import composed


def gradients_of_tables(
    options: Options, tables: Sequence[Array], made: Mapping[str, Array], queries: int
) -> list[Array]:
    """The gradient of each table that is wanted. made: outputs of a program, of which entries_0, ... are sums, see
    `weft.kernels.gpu.score.slots.entries_of`. queries: how many. Raises UnsupportedError where the same bits are asked.
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
        if not name.startswith("entries_"):
            continue
        read = reads_of(composed(options.score))[int(name.removeprefix("entries_"))]
        into = found[read.table]
        assert into is not None, "sums are of tables that are wanted"
        found[read.table] = into + total.reshape(into.shape) if read.kind in ("dense", "pairs") else _brought(
            into, options, read, total, (tables, queries)
        )  # fmt: skip
    return [x.astype(table.dtype) for x, table in zip(found, tables, strict=True) if x is not None]


def _brought(into: Array, options: Options, read: Read, total: Array, given: tuple[Sequence[Array], int]) -> Array:
    """into + the sums (B, Hq, rows, columns or diagonals), at the indices of a read."""
    tables, queries = given
    places = [
        x.reshape((1,) * (3 - x.ndim) + x.shape)
        for x in map(
            jnp.asarray, indices_of(options.score, read.step, _where(read, total, queries, options.shift), tables)
        )
    ]
    alike = tuple(axis for axis in range(3) if all(place.shape[axis] == 1 for place in places))
    return into.at[tuple(places)].add(total.sum(alike, keepdims=True))


def _where(read: Read, total: Array, queries: int, shift: int) -> dict[str, Any]:
    """What the steps of an index read, for sums (B, Hq, length)."""
    batch, heads, length = total.shape
    at = jnp.arange(length, dtype=jnp.int32)
    q = k = jnp.int32(0)
    if read.kind == "rows":
        q = at
    elif read.kind == "columns":
        k = at
    else:  # k - q rises from 1 - queries on
        q, k = jnp.maximum(queries - 1 - at, 0), jnp.maximum(at - (queries - 1), 0)
    b, h = (jnp.arange(size, dtype=jnp.int32) for size in (batch, heads))
    return {"b": b[:, None, None], "h": h[:, None], "q": q, "k": k, "shift": shift, "score": jnp.float32(0)}
