"""dQ by tiles of queries, dK and dV by tiles of keys, and what the former leave for the latter.

Stats (B, Hq, M, 16) holds in columns 0 to 7 numbers whose sum is -lse / scale, in the others -delta. With `stats32` it
is (B, Hq, M, 2).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from weft.kernels.gpu.constants import LN2, LOG2E, LOW, PAIR, STATS
from weft.kernels.gpu.oracle import entries
from weft.kernels.gpu.oracle.forward import numbers_of
from weft.kernels.gpu.oracle.laws import law
from weft.kernels.gpu.oracle.memory import Call, Ints, Reals
from weft.kernels.gpu.oracle.numbers import Scoring, penalised, replaced
from weft.kernels.gpu.oracle.programs import tiles
from weft.kernels.gpu.oracle.tables import Owner, Part, Tile, Visit


# ---- numbers of rows -------------------------------------------------------------------------------------------------
def _without_keys(call: Call, lse: Reals) -> Reals:
    """Lse as scores subtract it: 0 of a row that sees no key."""
    none = lse == -np.inf
    if call.spec.rank > 1 or call.spec.direction == "delta":
        none = lse < LOW * (call.real("scale") if call.spec.linear else 1.0)
    return np.where(none, 0.0, lse)


def row_numbers(call: Call, owner: Owner, rows: Ints) -> tuple[Reals, Reals]:
    """(lse, delta) of queries, left in Delta and Stats where others read them."""
    spec, at = call.spec, numbers_of(call, owner.batch, owner.head, rows)
    lse = call.flat("Lse").load(at)
    o, do = (call.tensor(name).load(owner.batch, owner.head, rows) for name in ("Out", "DOut"))
    product = o * do
    if spec.rank == 0 or spec.direction == "delta":
        product = np.where(o == 0, 0.0, product)
    delta = product.sum(1)
    if spec.lse_gradient:
        delta = delta - np.where(lse == -np.inf, 0.0, call.flat("DLse").load(at))
    if spec.leaves_delta:
        call.flat("Delta").store(delta, at)
    lse = _without_keys(call, lse)
    if spec.folded:
        width = PAIR if spec.stats32 else STATS
        stats = np.zeros((rows.size, width))
        scale = call.real("scale")
        stats[:, 0], stats[:, width // 2] = np.log2(scale) - lse * LOG2E if spec.stats32 else -lse / scale, -delta
        call.flat("Stats", width).store(stats, at)
    return lse, delta


def subtracted(call: Call, at: Ints) -> tuple[Reals, Reals]:
    """(lse, delta) of queries as kernels of keys read them; at: their numbers among all."""
    if call.spec.folded:
        width = PAIR if call.spec.stats32 else STATS
        stats, scale = call.flat("Stats", width).load(at), call.real("scale")
        first = stats[:, : width // 2].sum(1)
        return (np.log2(scale) - first) * LN2 if call.spec.stats32 else -first * scale, -stats[:, width // 2 :].sum(1)
    lse = call.flat("Lse").load(at)
    known = _without_keys(call, lse) if call.spec.rank > 1 or call.spec.rules else lse
    return known, call.flat("Delta").load(at)


def row_sums(call: Call) -> None:
    """Delta and Stats of all queries, and zeros in DQ and in the counter of blocks."""
    if call.spec.claims:
        call.flat("Claimed").store(np.zeros(1), np.zeros(1, np.int64))
    heads, length, size = call.integer("all_heads"), call.integer("my_length"), call.spec.rows
    blocks = -(-length // size)
    for program in range(call.grid[0]):
        pair, block = divmod(program, blocks)
        owner = Owner(pair // heads, 0, pair % heads, 1)
        rows = np.arange(block * size, min(length, block * size + size))
        row_numbers(call, owner, rows)
        call.tensor("DQ").store(np.zeros((rows.size, call.spec.d)), owner.batch, owner.head, rows)


# ---- dQ --------------------------------------------------------------------------------------------------------------
def query_gradient(call: Call) -> None:
    """DQ = scale * sum over keys of ds K."""
    scoring = Scoring(call, call.integer("shift"))
    for owner, tile in tiles(call):
        dq = _query_gradient(call, scoring, owner, tile) * scoring.scale
        if call.spec.rank == 0:
            dq = np.where(tile.parts[0].seen[:, None], dq, 0.0)
        _keep(call, dq, "DQ", (owner.batch, owner.head, tile.rows))


def _query_gradient(call: Call, scoring: Scoring, owner: Owner, tile: Tile) -> Reals:
    batch, kv_head, head, _ = owner
    q, do = (call.tensor(name).load(batch, head, tile.rows) for name in ("Q", "DOut"))
    lse, delta = row_numbers(call, owner, tile.rows)
    dq = np.zeros_like(q)
    for visit in (visit for part in tile.parts for visit in part.visits):
        k, v = (call.tensor(name).load(batch, kv_head, visit.cols) for name in ("K", "V"))
        found = scoring.scores(q @ k.T, (batch, head), tile.rows, visit.cols)
        p = replaced(visit, np.exp(penalised(visit, found.s) - lse[:, None]), 0.0)
        ds = p * (do @ v.T * scoring.factors((batch, head), tile.rows, visit.cols) - delta[:, None])
        entries.add(call, entries.Pairs(batch, head, tile.rows, visit.cols), found, ds, p)
        dq += _through(call, ds, p, found.slope) @ k
    return dq


def _through(call: Call, ds: Reals, p: Reals, slope: Reals) -> Reals:
    """The gradient of products, but for the scale. Nothing comes of pairs without a weight, whatever slopes are."""
    return np.where(p > 0, ds * slope, 0.0) if call.spec.rules else ds * slope


def _keep(call: Call, values: Reals, name: str, place: tuple[int, int, Ints]) -> None:
    """Store a gradient, added to what earlier launches left where launches meet the same rows."""
    tensor = call.tensor(name)
    if not call.spec.accumulate:
        tensor.store(values, *place)
    elif call.spec.split:
        tensor.add(values, *place)
    else:
        tensor.store(tensor.load(*place) + values, *place)


# ---- dK and dV -------------------------------------------------------------------------------------------------------
class Keys(NamedTuple):
    """Keys and values of a tile, and sums of their gradients, which grow in place."""

    owner: Owner
    rows: Ints
    k: Reals
    v: Reals
    dk: Reals
    dv: Reals


def key_gradients(call: Call) -> None:
    """DK = scale * sum of ds^T Q and DV = sum of p^T dO, over queries and the heads of a group; or one of them.

    With `with_dq` also DQ += ds^T K, without the scale.
    """
    scoring = Scoring(call, call.integer("shift"))
    for owner, tile in tiles(call):
        law(call.spec.grouped or owner.heads == 1, "a kernel of one head meets a group of heads")
        k, v = (call.tensor(name).load(owner.batch, owner.kv_head, tile.rows) for name in ("K", "V"))
        mine = Keys(owner, tile.rows, k, v, np.zeros_like(k), np.zeros_like(v))
        for part in tile.parts:
            one = _of_seen(call, part, mine)
            for head in range(owner.head, owner.head + owner.heads):
                for visit in part.visits:
                    _add(call, scoring, one, part, (head, visit))
        _write(call, scoring, tile, mine)


def _of_seen(call: Call, part: Part, mine: Keys) -> Keys:
    """Keys that join sums over keys: of a kernel that makes DQ those that some query of a part may see."""
    if not call.spec.with_dq:
        return mine
    wanted = part.wanted[:, None]
    v = np.where(wanted, mine.v, 0.0) if call.spec.rank > 1 else mine.v
    return mine._replace(k=np.where(wanted, mine.k, 0.0), v=v)


def _add(call: Call, scoring: Scoring, mine: Keys, part: Part, what: tuple[int, Visit]) -> None:
    """One tile of queries of one head. what: the head and the tile."""
    (head, visit), batch, spec = what, mine.owner.batch, call.spec
    q, do = (call.tensor(name).load(batch, head, visit.cols) for name in ("Q", "DOut"))
    lse, delta = subtracted(call, numbers_of(call, batch, head, visit.cols, "their_length"))
    found = scoring.scores(q @ mine.k.T, (batch, head), visit.cols, mine.rows)
    p = replaced(visit, np.exp(penalised(visit, found.s.T) - lse), 0.0)
    factors = scoring.factors((batch, head), visit.cols, mine.rows).T
    ds = p * (mine.v @ do.T * factors - delta)
    entries.add(call, entries.Pairs(batch, head, visit.cols, mine.rows, True), found, ds.T, p.T)
    ds = _through(call, ds, p, found.slope.T)
    if spec.rank < 2:
        ds = replaced(visit, ds, 0.0)  # whatever lies in a key that no query sees
    if spec.with_dq:
        ds = np.where(part.wanted[:, None], ds, 0.0)
        call.tensor("DQ").add(ds.T @ mine.k, batch, head, visit.cols)
    mine.dv[:] += (p * factors) @ do
    mine.dk[:] += ds @ q


def _write(call: Call, scoring: Scoring, tile: Tile, mine: Keys) -> None:
    """The gradients of a tile, on their own or among the sums of shared keys."""
    spec, owner = call.spec, mine.owner
    dk, dv = mine.dk * scoring.scale, mine.dv
    if spec.rank > 1:
        seen = np.any([part.seen for part in tile.parts], axis=0)[:, None]
        dk, dv = np.where(seen, dk, 0.0), np.where(seen, dv, 0.0)
    if spec.leaves_shared:
        slots = call.table("Slots")[tile.rows]
        law((slots >= 0).all(), "a key has no place among the sums of shared keys")
        place = owner.batch, owner.kv_head, slots
        there = np.zeros((1, spec.d + spec.dv)) if spec.accumulate else call.tensor("Sums").load(*place)
        dk, dv = (
            x if spec.makes in ("both", half) else np.broadcast_to(there[..., part], x.shape)
            for half, x, part in (("dk", dk, slice(None, spec.d)), ("dv", dv, slice(spec.d, None)))
        )
        _keep(call, np.concatenate([dk, dv], axis=1), "Sums", place)
        return
    if spec.adds_shared:
        slots = call.table("Slots")[tile.rows]
        met = slots >= 0
        left = call.tensor("Sums").load(owner.batch, owner.kv_head, slots[met])
        dk[met] += left[:, : spec.d]
        dv[met] += left[:, spec.d :]
    for name, values, half in (("DK", dk, "dk"), ("DV", dv, "dv")):
        if spec.makes in ("both", half):
            _keep(call, values, name, (owner.batch, owner.kv_head, tile.rows))
