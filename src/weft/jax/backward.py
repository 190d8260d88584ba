"""Backward: every loop once more, from lse; nothing of the size of the scores is kept.

p = exp(s - lse), f is what dropout multiplies weights by, and delta = rowsum(dout * out) - dlse. Then dv += (f p)^T
dout, ds = p (f dout v^T - delta), dq += ds k, dk += ds^T q. Sums are in a fixed order, so the same bits every time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp
from jax import Array, lax

from weft.jax.arrays import full
from weft.jax.forward import accumulate, variant
from weft.jax.loops import K_LEAD, Q_LEAD, Walk, walks_of
from weft.jax.places import Heads, over_heads
from weft.jax.rules import added
from weft.jax.scores import Beside, Scored, Scoring, product, score
from weft.jax.structure import Program, Structure


class Rows(NamedTuple):
    """Of every query: q (..., D), dout (..., Dv), lse (...) with +inf where it sees nothing, delta (...)."""

    q: Array
    dout: Array
    lse: Array
    delta: Array


class Gradients(NamedTuple):
    """dq (..., M, D), dk (..., N, D), dv (..., N, Dv) in the dtype of accumulation, and those of tables."""

    dq: Array
    dk: Array
    dv: Array
    tables: tuple[Array | None, ...] = ()


def backward(
    tensors: tuple[Array, Array, Array], rows: tuple[Array, Array, Array, Array], beside: Beside, masks: Masks,
    how: Scoring, wanted: tuple[bool, ...] = (),
) -> tuple[Array, ...]:  # fmt: skip
    """(dq, dk, dv) in the dtypes and shapes of q, k and v, then gradients of the tables that are wanted.

    Shapes are those of `forward`. rows: out, lse, dout, dlse. masks: the structure and its tables.
    """
    q, k, v = tensors
    out, lse, dout, dlse = rows
    wide, (structure, tables) = accumulate(q.dtype), masks
    seen = lse > -jnp.inf
    dout = jnp.where(seen[..., None], dout, 0)  # of rows without keys it may be anything
    delta = (dout.astype(wide) * out.astype(wide)).sum(-1) - jnp.where(seen, dlse, 0)
    every = Rows(q, dout, jnp.where(seen, lse, jnp.inf), delta)

    def chunk(program: Program, tables: Any, heads: Heads, grads: Gradients) -> Gradients:
        here = Rows(*(heads.of(x) for x in every))
        keys = heads.of(k, 3), heads.of(v, 3)
        walks = walks_of(program, variant(tables, program, heads), (q.shape[4], k.shape[3]))
        scoring = Local(partial(score, beside=heads.beside(beside), how=how), how.scale)
        new = _heads(here, keys, walks, scoring, grads.tables)
        dk, dv = (heads.put(x, heads.of(x, 3) + more, 3) for x, more in zip(grads[1:3], new[1:3], strict=True))
        return Gradients(heads.put(grads.dq, new.dq), dk, dv, new.tables)

    zeros = _zeros(q, tensors, wide, _nothing_of(beside.tables, wanted, q))
    found = over_heads(structure, tables, q.shape[:4], chunk, zeros)
    dtables = (x for x in found.tables if x is not None)
    return found.dq.astype(q.dtype), found.dk.astype(k.dtype), found.dv.astype(v.dtype), *dtables


Masks: TypeAlias = tuple[Structure, Any]


class Local(NamedTuple):
    """What becomes of scores of some heads. score: of queries, keys and a Chunk."""

    score: Callable[..., Scored]
    scale: float


def _zeros(like: Array, tensors: Sequence[Array], wide: Any, tables: tuple[Array | None, ...]) -> Gradients:
    dq, dk, dv = (full(like, x.shape, 0, wide) for x in tensors)
    return Gradients(dq, dk, dv, tables)


def _nothing_of(tables: tuple[Array, ...], wanted: tuple[bool, ...], like: Array) -> tuple[Array | None, ...]:
    return tuple(full(like, x.shape, 0, x.dtype) if w else None for x, w in zip(tables, wanted, strict=False))


def _heads(
    rows: Rows, keys: tuple[Array, Array], walks: Sequence[Walk], local: Local, tables: tuple[Array | None, ...]
) -> Gradients:
    """Gradients of some heads. rows: (P, G, M, ...); keys: k (P, N, D), v (P, N, Dv). tables: of other heads."""
    wide = rows.delta.dtype
    grads = _zeros(rows.q, (rows.q, *keys), wide, tables)
    for walk in walks:
        grads = _walk(grads, rows, keys, walk, local)
    return grads._replace(dq=grads.dq * local.scale, dk=grads.dk * local.scale)


def _walk(grads: Gradients, rows: Rows, keys: tuple[Array, Array], walk: Walk, local: Local) -> Gradients:
    wide = rows.delta.dtype
    views = Rows(*(walk.q_view.of(x, Q_LEAD, walk.q_tokens) for x in rows))
    k, v = (walk.k_view.of(x, K_LEAD, walk.k_tokens) for x in keys)
    dk, dv = (walk.k_view.of(x, K_LEAD, walk.k_tokens) for x in grads[1:3])
    sums = Gradients(walk.q_view.of(grads.dq, Q_LEAD, walk.q_tokens), dk, dv, grads.tables)

    def tile(index: Array, sums: Gradients) -> Gradients:
        tile = walk.tile(index)
        here = Rows(*(walk.queries(x, tile).astype(wide) for x in views))

        def chunk(number: Array, sums: Gradients) -> Gradients:
            at, pairs = walk.chunk(tile, number)
            some, values = walk.keys(k, at).astype(wide), walk.keys(v, at).astype(wide)
            scored = local.score(here.q, some, pairs)
            p = jnp.exp(scored.scores - here.lse[..., None])
            by_weight = product("pgqd,pkd->pgqk", here.dout, values)
            f = 1 if scored.factors is None else scored.factors
            by_score = jnp.where(scored.live, p * (by_weight * f - here.delta[..., None]), 0)
            ds = by_score if scored.slope is None else jnp.where(by_score == 0, 0, by_score * scored.slope)
            return Gradients(
                sums.dq + product("pgqk,pkd->pgqd", ds, some),
                walk.add_keys(sums.dk, at, product("pgqk,pgqd->pkd", ds, here.q)),
                walk.add_keys(sums.dv, at, product("pgqk,pgqd->pkd", p * f, here.dout)),
                added(sums.tables, scored.entries, by_score),
            )

        own = sums._replace(dq=walk.queries(sums.dq, tile))
        own = lax.fori_loop(jnp.int32(0), tile.chunks, chunk, own)
        return own._replace(dq=walk.put_queries(sums.dq, tile, own.dq))

    sums = lax.fori_loop(jnp.int32(0), walk.count, tile, sums)
    dk, dv = (walk.k_view.put(x, new, K_LEAD, walk.k_tokens) for x, new in zip(grads[1:3], sums[1:3], strict=True))
    return Gradients(walk.q_view.put(grads.dq, sums.dq, Q_LEAD, walk.q_tokens), dk, dv, sums.tables)
