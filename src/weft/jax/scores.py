"""Scores of a tile: scale, softcap, ALiBi, and which pairs are live."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax


@dataclass(frozen=True)
class Scoring:
    """What is done to q . k before the soft maximum; hashable. shift: what is added to query indices for ALiBi."""

    scale: float
    softcap: float | None = None
    shift: int = 0


class Scored(NamedTuple):
    """scores (P, G, rows, keys), -inf where dead; slope: their derivative by scale * (q . k), None where it is 1."""

    scores: Array
    live: Array
    slope: Array | None


class Chunk(NamedTuple):
    """What one tile of queries sees of one chunk of keys.

    live: (rows, keys). slopes: (P, G), and rows and keys: token indices, where there is ALiBi; else None.
    """

    live: Array
    slopes: Array | None = None
    rows: Array | None = None
    keys: Array | None = None


def score(q: Array, k: Array, chunk: Chunk, how: Scoring) -> Scored:
    """The scores of queries (P, G, rows, D) and keys (P, keys, D)."""
    s = product("pgqd,pkd->pgqk", q, k) * how.scale
    slope = None
    if how.softcap is not None:
        tanh = jnp.tanh(s / how.softcap)
        s, slope = tanh * how.softcap, 1 - tanh * tanh
    if chunk.slopes is not None:
        assert chunk.rows is not None and chunk.keys is not None
        distance = jnp.abs(chunk.rows[:, None] + how.shift - chunk.keys[None, :]).astype(s.dtype)
        s = s - chunk.slopes[:, :, None, None] * distance
    return Scored(jnp.where(chunk.live, s, -jnp.inf), chunk.live, slope)


def product(spec: str, a: Array, b: Array) -> Array:
    """A matrix product in the dtype of its factors, with all of their digits."""
    return jnp.einsum(spec, a, b, precision=lax.Precision.HIGHEST)
