"""Backward: every loop once more, from lse; nothing of the size of the scores is kept.

With p = exp(s - lse) and delta = rowsum(dout * out) - dlse: dv += p^T dout, ds = p (dout v^T - delta), dq += ds k, dk
+= ds^T q. Sums are in a fixed order, so the same bits every time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from weft.jax.arrays import full
from weft.jax.forward import accumulate, variant
from weft.jax.loops import K_LEAD, Q_LEAD, Walk, walks_of
from weft.jax.places import Heads, over_heads
from weft.jax.scores import Scoring, product, score
from weft.jax.structure import Program, Structure


class Rows(NamedTuple):
    """Of every query: q (..., D), dout (..., Dv), lse (...) with +inf where it sees nothing, delta (...)."""

    q: Array
    dout: Array
    lse: Array
    delta: Array


class Gradients(NamedTuple):
    """dq (..., M, D), dk (..., N, D), dv (..., N, Dv), in the dtype of accumulation."""

    dq: Array
    dk: Array
    dv: Array


def backward(
    tensors: tuple[Array, Array, Array], rows: tuple[Array, Array, Array, Array], slopes: Array | None,
    structure: Structure, tables: Any, how: Scoring,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """(dq, dk, dv) in the dtypes and shapes of q, k and v; shapes as `forward`'s. rows: out, lse, dout, dlse."""
    q, k, v = tensors
    out, lse, dout, dlse = rows
    wide = accumulate(q.dtype)
    seen = lse > -jnp.inf
    dout = jnp.where(seen[..., None], dout, 0)  # of rows without keys it may be anything
    delta = (dout.astype(wide) * out.astype(wide)).sum(-1) - jnp.where(seen, dlse, 0)
    every = Rows(q, dout, jnp.where(seen, lse, jnp.inf), delta)

    def chunk(program: Program, tables: Any, heads: Heads, grads: Gradients) -> Gradients:
        here = Rows(*(heads.of(x) for x in every))
        local = None if slopes is None else heads.slopes(slopes)
        keys = heads.of(k, 3), heads.of(v, 3)
        walks = walks_of(program, variant(tables, program, heads), (q.shape[4], k.shape[3]), local)
        new = _heads(here, keys, walks, how)
        dk, dv = (heads.put(x, heads.of(x, 3) + more, 3) for x, more in zip(grads[1:], new[1:], strict=True))
        return Gradients(heads.put(grads.dq, new.dq), dk, dv)

    zeros = Gradients(*(full(q, x.shape, 0, wide) for x in tensors))
    found = over_heads(structure, tables, q.shape[:4], chunk, zeros)
    return found.dq.astype(q.dtype), found.dk.astype(k.dtype), found.dv.astype(v.dtype)


def _heads(rows: Rows, keys: tuple[Array, Array], walks: Sequence[Walk], how: Scoring) -> Gradients:
    """Gradients of some heads. rows: (P, G, M, ...); keys: k (P, N, D), v (P, N, Dv)."""
    wide = rows.delta.dtype
    grads = Gradients(*(full(rows.q, x.shape, 0, wide) for x in (rows.q, *keys)))
    for walk in walks:
        grads = _walk(grads, rows, keys, walk, how)
    return Gradients(grads.dq * how.scale, grads.dk * how.scale, grads.dv)


def _walk(grads: Gradients, rows: Rows, keys: tuple[Array, Array], walk: Walk, how: Scoring) -> Gradients:
    wide = rows.delta.dtype
    views = Rows(*(walk.q_view.of(x, Q_LEAD, walk.q_tokens) for x in rows))
    k, v = (walk.k_view.of(x, K_LEAD, walk.k_tokens) for x in keys)
    sums = Gradients(
        walk.q_view.of(grads.dq, Q_LEAD, walk.q_tokens),
        *(walk.k_view.of(x, K_LEAD, walk.k_tokens) for x in grads[1:]),
    )

    def tile(index: Array, sums: Gradients) -> Gradients:
        tile = walk.tile(index)
        here = Rows(*(walk.queries(x, tile).astype(wide) for x in views))

        def chunk(number: Array, sums: Gradients) -> Gradients:
            at, pairs = walk.chunk(tile, number)
            some, values = walk.keys(k, at).astype(wide), walk.keys(v, at).astype(wide)
            scored = score(here.q, some, pairs, how)
            p = jnp.exp(scored.scores - here.lse[..., None])
            ds = p * (product("pgqd,pkd->pgqk", here.dout, values) - here.delta[..., None])
            ds = ds if scored.slope is None else ds * scored.slope
            ds = jnp.where(pairs.live, ds, 0)
            return Gradients(
                sums.dq + product("pgqk,pkd->pgqd", ds, some),
                walk.add_keys(sums.dk, at, product("pgqk,pgqd->pkd", ds, here.q)),
                walk.add_keys(sums.dv, at, product("pgqk,pgqd->pkd", p, here.dout)),
            )

        own = sums._replace(dq=walk.queries(sums.dq, tile))
        own = lax.fori_loop(jnp.int32(0), tile.chunks, chunk, own)
        return own._replace(dq=walk.put_queries(sums.dq, tile, own.dq))

    sums = lax.fori_loop(jnp.int32(0), walk.count, tile, sums)
    dk, dv = (walk.k_view.put(x, new, K_LEAD, walk.k_tokens) for x, new in zip(grads[1:], sums[1:], strict=True))
    return Gradients(walk.q_view.put(grads.dq, sums.dq, Q_LEAD, walk.q_tokens), dk, dv)
