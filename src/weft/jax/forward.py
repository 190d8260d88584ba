"""Forward: a running soft maximum over all loops of a program, whose state is kept for every row.

For a chunk of scores s: m' = max(m, max s), a = exp(m - m'), l' = a l + sum exp(s - m'), acc' = a acc + exp(s - m') v.
Which loop comes first does not matter, so loops that meet a row again need no merge. (Milakov, Gimelshein 2018,
arXiv 1805.02867; Dao 2023, arXiv 2307.08691.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array, lax

from weft.jax.arrays import full
from weft.jax.loops import K_LEAD, Q_LEAD, Walk, walks_of
from weft.jax.places import Heads, over_heads
from weft.jax.scores import Beside, Scored, Scoring, product, score
from weft.jax.structure import Program, Structure


class Running(NamedTuple):
    """The state of rows: acc (..., Dv), the weighted sum of values; most (...), the largest score; total (...)."""

    acc: Array
    most: Array
    total: Array


Visit: TypeAlias = Callable[[Running], Running]
Scores: TypeAlias = Callable[..., Scored]  # of queries, keys and a Chunk


def forward(
    tensors: tuple[Array, Array, Array],
    beside: Beside,
    structure: Structure,
    tables: Any,
    how: Scoring,
    kind: Any,
) -> tuple[Array, Array]:
    """(out (L, B, K, G, M, Dv) in dtype `kind`, lse (L, B, K, G, M) in the dtype of accumulation).

    tensors: q (L, B, K, G, M, D), k (L, B, K, N, D), v (L, B, K, N, Dv).
    """
    q, k, v = tensors
    wide = accumulate(q.dtype)
    out = full(q, (*q.shape[:-1], v.shape[-1]), 0, kind)
    lse = full(q, q.shape[:-1], -jnp.inf, wide)

    def chunk(program: Program, tables: Any, heads: Heads, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        here = heads.of(q), heads.of(k, 3), heads.of(v, 3)
        walks = walks_of(program, variant(tables, program, heads), (q.shape[4], k.shape[3]))
        scoring = partial(score, beside=heads.beside(beside), how=how)
        new, sums = _heads(here, walks, scoring, kind if program.once else None)
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
    tensors: tuple[Array, Array, Array], walks: Sequence[Walk], scoring: Scores, final: Any
) -> tuple[Array, Array]:
    """(out (P, G, M, Dv), lse (P, G, M)) of some heads. q (P, G, M, D), k (P, N, D), v (P, N, Dv).

    final: the dtype of out if the only walk visits no query twice, else None.
    """
    q, width = tensors[0], tensors[2].shape[-1]
    rows = q.shape[:3]
    if final is not None:
        held = full(q, (*rows, width), 0, final), full(q, rows, -jnp.inf, accumulate(q.dtype))
        out, lse = _walk(held, tensors, walks[0], scoring, _final)
        return out, lse
    state = _nothing(q, rows, width)
    for walk in walks:
        state = Running(*_walk(state, tensors, walk, scoring, _next))
    return _finished(state)


def _nothing(like: Array, rows: tuple[int, ...], width: int) -> Running:
    """The state of rows that have seen no key."""
    wide = accumulate(like.dtype)
    return Running(full(like, (*rows, width), 0, wide), full(like, rows, -jnp.inf, wide), full(like, rows, 0, wide))


def _finished(state: Running) -> tuple[Array, Array]:
    """(out, lse) of rows that have seen all their keys."""
    total = jnp.where(state.total == 0, 1, state.total)
    lse = jnp.where(state.total == 0, -jnp.inf, state.most + jnp.log(total))
    return state.acc / total[..., None], lse


def _final(held: Sequence[Array], visit: Visit) -> tuple[Array, ...]:
    """out and lse of a tile's rows, where no other tile has keys for them; rows without keys here keep theirs."""
    out, lse = held
    new, sums = _finished(visit(_nothing(out, out.shape[:3], out.shape[3])))
    seen = sums > -jnp.inf
    return jnp.where(seen[..., None], new.astype(out.dtype), out), jnp.where(seen, sums, lse)


def _next(held: Sequence[Array], visit: Visit) -> tuple[Array, ...]:
    """The state of a tile's rows after its keys."""
    return visit(Running(*held))


def _walk(
    held: Sequence[Array], tensors: tuple[Array, Array, Array], walk: Walk, scoring: Scores,
    update: Callable[[Sequence[Array], Visit], tuple[Array, ...]],
) -> tuple[Array, ...]:  # fmt: skip
    """What is held of every row after all tiles of a loop. update: what becomes of that of one tile's rows."""
    wide = accumulate(tensors[0].dtype)
    q = walk.q_view.of(tensors[0], Q_LEAD, walk.q_tokens)
    k, v = (walk.k_view.of(x, K_LEAD, walk.k_tokens) for x in tensors[1:])
    views = tuple(walk.q_view.of(x, Q_LEAD, walk.q_tokens) for x in held)

    def tile(index: Array, views: tuple[Array, ...]) -> tuple[Array, ...]:
        tile = walk.tile(index)
        rows = walk.queries(q, tile).astype(wide)

        def chunk(number: Array, state: Running) -> Running:
            at, pairs = walk.chunk(tile, number)
            keys, values = walk.keys(k, at).astype(wide), walk.keys(v, at).astype(wide)
            return _joined(state, scoring(rows, keys, pairs), values)

        def visit(state: Running) -> Running:
            found: Running = lax.fori_loop(jnp.int32(0), tile.chunks, chunk, state)
            return found

        updated = update([walk.queries(x, tile) for x in views], visit)
        return tuple(walk.put_queries(x, tile, new) for x, new in zip(views, updated, strict=True))

    views = lax.fori_loop(jnp.int32(0), walk.count, tile, views)
    return tuple(walk.q_view.put(x, new, Q_LEAD, walk.q_tokens) for x, new in zip(held, views, strict=True))


def _joined(state: Running, scored: Scored, values: Array) -> Running:
    """The state after the keys of a chunk; weights that are dropped count in the total all the same."""
    scores = scored.scores
    most = jnp.maximum(state.most, scores.max(-1))
    base = jnp.where(most == -jnp.inf, 0, most)
    weights = jnp.exp(scores - base[..., None])
    kept = jnp.exp(state.most - base)
    total = state.total * kept + weights.sum(-1)
    weights = weights if scored.factors is None else weights * scored.factors
    acc = state.acc * kept[..., None] + product("pgqk,pkd->pgqd", weights, values)
    return Running(acc, most, total)
