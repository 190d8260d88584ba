"""Forward: a running soft maximum over all loops of a program, whose state is kept for every row.

For a chunk of scores s: m' = max(m, max s), a = exp(m - m'), l' = a l + sum exp(s - m'), acc' = a acc + exp(s - m') v.
Which loop comes first does not matter, so loops that meet a row again need no merge. (Milakov, Gimelshein 2018,
arXiv 1805.02867; Dao 2023, arXiv 2307.08691.)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from weft.jax.arrays import full
from weft.jax.loops import K_LEAD, Q_LEAD, Walk, walk_of
from weft.jax.places import Heads, over_heads
from weft.jax.scores import Scoring, product, score
from weft.jax.structure import Program, Structure


class Running(NamedTuple):
    """The state of rows: acc (..., Dv), the weighted sum of values; most (...), the largest score; total (...)."""

    acc: Array
    most: Array
    total: Array


def forward(
    tensors: tuple[Array, Array, Array],
    slopes: Array | None,
    structure: Structure,
    tables: Any,
    how: Scoring,
    kind: Any,
) -> tuple[Array, Array]:
    """(out (L, B, K, G, M, Dv) in dtype `kind`, lse (L, B, K, G, M) in the dtype of accumulation).

    tensors: q (L, B, K, G, M, D), k (L, B, K, N, D), v (L, B, K, N, Dv). slopes: (L, K, G) or None.
    """
    q, k, v = tensors
    wide = accumulate(q.dtype)
    out = full(q, (*q.shape[:-1], v.shape[-1]), 0, kind)
    lse = full(q, q.shape[:-1], -jnp.inf, wide)

    def chunk(program: Program, tables: Any, heads: Heads, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        here = heads.of(q), heads.of(k, 3), heads.of(v, 3)
        local = None if slopes is None else heads.slopes(slopes)
        new, sums = _heads(here, local, program, variant(tables, program, heads), how)
        return heads.put(carry[0], new), heads.put(carry[1], sums)

    return over_heads(structure, tables, q.shape[:4], chunk, (out, lse))


def accumulate(dtype: Any) -> Any:
    """What sums are kept in: float64 for float64, else float32."""
    return jnp.float64 if dtype == jnp.float64 else jnp.float32


def variant(tables: Any, program: Program, heads: Heads) -> Any:
    """The tables of one mask of a program."""
    if program.variants == 1:
        return jax.tree.map(lambda x: x[0], tables["loops"])
    return jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, heads.variant, keepdims=False), tables["loops"])


def _heads(
    tensors: tuple[Array, Array, Array], slopes: Array | None, program: Program, tables: Any, how: Scoring
) -> tuple[Array, Array]:
    """(out (P, G, M, Dv), lse (P, G, M)) of some heads. q (P, G, M, D), k (P, N, D), v (P, N, Dv)."""
    q, k, v = tensors
    rows, wide = q.shape[:3], accumulate(q.dtype)
    state = Running(
        *(full(q, shape, value, wide) for shape, value in (((*rows, v.shape[-1]), 0), (rows, -jnp.inf), (rows, 0)))
    )
    for loop, own in zip(program.loops, tables, strict=True):
        walk = walk_of(loop, own, (q.shape[2], k.shape[1]), slopes)
        state = _walk(state, tensors, walk, how)
    total = jnp.where(state.total == 0, 1, state.total)
    lse = jnp.where(state.total == 0, -jnp.inf, state.most + jnp.log(total))
    return state.acc / total[..., None], lse


def _walk(state: Running, tensors: tuple[Array, Array, Array], walk: Walk, how: Scoring) -> Running:
    wide = state.acc.dtype
    q = walk.q_view.of(tensors[0], Q_LEAD, walk.q_tokens)
    k, v = (walk.k_view.of(x, K_LEAD, walk.k_tokens) for x in tensors[1:])
    views = Running(*(walk.q_view.of(x, Q_LEAD, walk.q_tokens) for x in state))

    def tile(index: Array, views: Running) -> Running:
        tile = walk.tile(index)
        rows = walk.queries(q, tile).astype(wide)

        def chunk(number: Array, state: Running) -> Running:
            at, pairs = walk.chunk(tile, number)
            keys, values = walk.keys(k, at).astype(wide), walk.keys(v, at).astype(wide)
            return _joined(state, score(rows, keys, pairs, how).scores, values)

        state = Running(*(walk.queries(x, tile) for x in views))
        state = lax.fori_loop(jnp.int32(0), tile.chunks, chunk, state)
        return Running(*(walk.put_queries(x, tile, new) for x, new in zip(views, state, strict=True)))

    views = lax.fori_loop(jnp.int32(0), walk.count, tile, views)
    return Running(*(walk.q_view.put(x, new, Q_LEAD, walk.q_tokens) for x, new in zip(state, views, strict=True)))


def _joined(state: Running, scores: Array, values: Array) -> Running:
    most = jnp.maximum(state.most, scores.max(-1))
    base = jnp.where(most == -jnp.inf, 0, most)
    weights = jnp.exp(scores - base[..., None])
    kept = jnp.exp(state.most - base)
    acc = state.acc * kept[..., None] + product("pgqk,pkd->pgqd", weights, values)
    return Running(acc, most, state.total * kept + weights.sum(-1))
