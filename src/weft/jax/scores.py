"""Scores of a tile: scale, softcap, score functions, which pairs are live, and which weights are kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from weft.jax.dropout import factors_of
from weft.jax.rules import Entry, evaluate


@dataclass(frozen=True)
class Scoring:
    """What is done to q . k before the soft maximum, and to weights after it; hashable.

    shift: what alignment adds to query indices. score: score functions as text (`weft.score.text`), "" for none.
    dropout: the share of weights that is dropped.
    """

    scale: float
    softcap: float | None = None
    shift: int = 0
    score: str = ""
    dropout: float = 0.0

    @property
    def by_pairs(self) -> bool:
        """Whether anything depends on the numbers of a pair."""
        return bool(self.score or self.dropout)


class Beside(NamedTuple):
    """What a call brings for score functions and dropout, None where nothing depends on the numbers of a pair.

    batch (B,), heads (K, G): numbers of batch rows and of query heads; of one chunk of heads (P,) and (P, G). seed
    (2,): its low and its high 32 bits. tables: those that score functions read.
    """

    batch: Array | None = None
    heads: Array | None = None
    seed: Array | None = None
    tables: tuple[Array, ...] = ()


class Chunk(NamedTuple):
    """What one tile of queries sees of one chunk of keys: live (rows, keys), and the token indices of both sides."""

    live: Array
    rows: Array
    keys: Array


class Scored(NamedTuple):
    """scores (P, G, rows, keys), -inf where dead; slope: their derivative by scale * (q . k), None where it is 1.

    live: broadcasts to the scores. entries: of each read of a table the derivative by what it gave. factors: what
    dropout multiplies weights by, None without.
    """

    scores: Array
    live: Array
    slope: Array | None
    entries: tuple[Entry, ...] = ()
    factors: Array | None = None


def score(q: Array, k: Array, chunk: Chunk, beside: Beside, how: Scoring) -> Scored:
    """The scores of queries (P, G, rows, D) and keys (P, keys, D). beside: of their heads."""
    s = product("pgqd,pkd->pgqk", q, k) * how.scale
    slope, factors, live = None, None, chunk.live
    entries: tuple[Entry, ...] = ()
    if how.softcap is not None:
        tanh = jnp.tanh(s / how.softcap)
        s, slope = tanh * how.softcap, 1 - tanh * tanh
    if how.by_pairs:
        pairs = _numbers(chunk, beside)
        if how.score:
            found = evaluate(how.score, {"score": s, "shift": how.shift, **pairs}, beside.tables)
            slope = found.slope if slope is None else slope * found.slope
            s, entries = found.score, found.entries
            live = live & (s > -jnp.inf)
        if how.dropout:
            assert beside.seed is not None
            factors = factors_of(how.dropout, beside.seed, pairs).astype(s.dtype)
    return Scored(jnp.where(live, s, -jnp.inf), live, slope, entries, factors)


def _numbers(chunk: Chunk, beside: Beside) -> dict[str, Any]:
    """b, h, q and k of every pair; they broadcast to the scores."""
    assert beside.batch is not None and beside.heads is not None
    return {
        "b": beside.batch[:, None, None, None], "h": beside.heads[:, :, None, None],
        "q": chunk.rows[None, None, :, None], "k": chunk.keys[None, None, None, :],
    }  # fmt: skip


def product(spec: str, a: Array, b: Array) -> Array:
    """A matrix product in the dtype of its factors, with all of their digits."""
    return jnp.einsum(spec, a, b, precision=lax.Precision.HIGHEST)
