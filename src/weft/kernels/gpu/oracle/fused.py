"""Gradients of a short window by one walk over queries, and what sparse keys beside the window add to them.

Tiles have TILE tokens on both sides, and tensor descriptors read and write them. Tokens beyond the sequence read as
zeros, and are not written. `fused_backward` and `sparse_keys` in `weft.planning.families` say which tiles meet.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from weft.kernels.gpu.oracle.laws import law
from weft.kernels.gpu.oracle.memory import Bools, Call, Ints, Reals
from weft.planning.families.fused_backward import SEEN
from weft.planning.families.sparse_keys import EDGES, GROUPS, RANGES, REDUCED, TILE, TILES

LEAD = SEEN - 1
SUMS = 2 * TILE * TILE  # numbers of dK and dV of one tile of keys


class Queries(NamedTuple):
    """A tile of queries of one head, and what its scores subtract."""

    q: Reals
    do: Reals
    lse: Reals
    delta: Reals


class Tile(NamedTuple):
    """A tile of keys. low, high: of each key the first query that sees it, and the one after the last; every, until:
    queries from the one to before the other see all of them.
    """

    k: Reals
    v: Reals
    low: Ints
    high: Ints
    every: int
    until: int


def _pair(i: int, keys: Tile, queries: Queries, scale: float, length: int) -> tuple[Reals, Reals]:
    """(p, ds) (keys, queries) of a tile of keys and tile i of queries."""
    p = np.exp(keys.k @ queries.q.T * scale - queries.lse)
    dp = keys.v @ queries.do.T - queries.delta
    at = i * TILE + np.arange(TILE)
    live: Bools = (at >= keys.low[:, None]) & (at < keys.high[:, None])
    if i * TILE < keys.every or i * TILE + TILE > keys.until:
        p, dp = np.where(live, p, 0.0), np.where(live, dp, 0.0)
    else:
        law(live[:, at < length].all(), "a tile that is not masked is not full")
    return p, p * dp


def _numbers(call: Call, name: str, head: int, i: int, nothing: float) -> Reals:
    """Numbers of a tile of queries; `nothing` beyond the last. head: of all batch rows."""
    length = call.integer("tokens")
    row = i * TILE + np.arange(TILE)
    found = np.full(TILE, nothing)
    found[row < length] = call.flat(name).load(head * length + row[row < length])
    return found


# ---- the window ------------------------------------------------------------------------------------------------------
class Run(NamedTuple):
    """Tiles of keys from begin to before end that one item writes; its walk begins at tile `first` of queries."""

    member: int
    begin: int
    end: int
    first: int


def _runs(call: Call) -> Iterator[Run]:
    items, runs, per, tiles = (call.integer(name) for name in ("items", "runs", "per", "tiles"))
    for program in range(call.grid[0]):
        for item in range(program, items, call.grid[0]):
            begin = item % runs * per
            yield Run(item // runs, begin, min(begin + per, tiles), max(begin - LEAD, 0))


def gradients(call: Call) -> None:
    """DQ, DK and DV; with `with_delta` Delta too."""
    for run in _runs(call):
        dk: dict[int, Reals] = defaultdict(lambda: np.zeros((TILE, TILE)))
        dv: dict[int, Reals] = defaultdict(lambda: np.zeros((TILE, TILE)))
        keys = {c: _keys(call, run.member, c) for c in range(run.first, run.end + LEAD)}
        for i in range(run.first, run.end):
            for h in range(call.integer("share")):
                queries, dq = _queries(call, run.member, h, i), np.zeros((TILE, TILE))
                for c in range(i, i + SEEN):
                    p, ds = _pair(i, keys[c], queries, call.real("scale"), call.integer("tokens"))
                    dv[c] += p @ queries.do
                    dk[c] += ds @ queries.q
                    dq += ds.T @ keys[c].k
                if i >= run.begin:
                    call.box("DQ_box").store(dq * call.real("scale"), *_at(call, run.member, h), i * TILE, 0)
            if i >= run.begin:
                _write_keys(call, run.member, i, (dk[i], dv[i]))


def _at(call: Call, member: int, h: int) -> tuple[int, int]:
    """(batch row, query head) of the h-th of the heads that share a head of keys."""
    kv_heads = call.integer("kv_heads")
    return member // kv_heads, member % kv_heads * call.integer("share") + h


def _keys(call: Call, member: int, c: int) -> Tile:
    """Tile c of keys with its bounds."""
    length, first = call.integer("tokens"), c * TILE - call.integer("shift")
    left, right = call.integer("left"), call.integer("right")
    batch, head = divmod(member, call.integer("kv_heads"))
    k, v = (call.box(name).load(batch, head, first, 0) for name in ("K_box", "V_box"))
    key = first + np.arange(TILE)
    inside = (key >= 0) & (key < length)
    low = np.where(inside, key - right, 0)
    high = np.where(inside, np.minimum(key + left + 1, length), 0)
    every, until = (first + TILE - 1 - right, first + left + 1) if inside.all() else (length, 0)
    return Tile(k, v, low, high, every, until)


def _queries(call: Call, member: int, h: int, i: int) -> Queries:
    """Tile i of queries; its delta is left where it is wanted."""
    spec, (batch, head) = call.spec, _at(call, member, h)
    q, do, o = (call.box(name).load(batch, head, i * TILE, 0) for name in ("Q_box", "DOut_box", "Out_box"))
    number = member * call.integer("share") + h
    lse = _numbers(call, "Lse", number, i, -np.inf)
    delta = (do * o).sum(1)
    if spec.lse_gradient:
        delta = delta - _numbers(call, "DLse", number, i, 0.0)
    if spec.with_delta:
        length, row = call.integer("tokens"), i * TILE + np.arange(TILE)
        call.flat("Delta").store(delta[row < length], number * length + row[row < length])
    return Queries(q, do, np.where(lse == -np.inf, 0.0, lse), delta)


def _write_keys(call: Call, member: int, c: int, sums: tuple[Reals, Reals]) -> None:
    """dK and dV of a tile of keys that is seen no more, unless it lies before the first key."""
    key = c * TILE - call.integer("shift")
    if 0 <= key < call.integer("tokens"):
        batch, head = divmod(member, call.integer("kv_heads"))
        call.box("DK_box").store(sums[0] * call.real("scale"), batch, head, key, 0)
        call.box("DV_box").store(sums[1], batch, head, key, 0)


# ---- sparse keys beside it -------------------------------------------------------------------------------------------
def sparse_keys(call: Call) -> None:
    """Add to DQ, and leave sums of dK and dV of each program and group in Partial."""
    items, parts = call.integer("items"), call.integer("parts")
    begin, middle, end = (int(x) for x in call.table()[:3])
    for program in range(call.grid[0]):
        for item in range(program, items, call.grid[0]):
            member = item // parts
            keys = [_sparse(call, member, t) for t in range(TILES)]
            for group in range(GROUPS):
                mine, every = GROUPS * (item % parts) + group, GROUPS * parts
                sums = np.zeros((TILES, 2, TILE, TILE))
                spans = (_first_of(begin, mine, every), middle), (_first_of(middle, mine, every), end)
                for count, (first, last) in enumerate(spans, 1):
                    for h in range(call.integer("share")):
                        for i in range(first, last, every):
                            _add_sparse(call, (member, h, i), keys[:count], sums)
                wanted = TILES if middle < end else 1
                place = (item * GROUPS + group) * TILES * SUMS + np.arange(wanted * SUMS)
                call.flat("Partial").store(sums[:wanted].reshape(-1), place)


def _first_of(begin: int, mine: int, every: int) -> int:
    """The first tile from `begin` on that is `mine` of `every`."""
    return begin + (mine + every - begin % every) % every


def _sparse(call: Call, member: int, t: int) -> Tile:
    """Tile t of the sparse keys with its bounds, which the table has."""
    table, (batch, head) = call.table(), divmod(member, call.integer("kv_heads"))
    place, lane = call.integer("place") + t * TILE, call.integer("lane")
    k, v = (call.box(name).load(batch, head, place, lane) for name in ("K_box", "V_box"))
    every, until = (int(x) for x in table[RANGES + EDGES * t :][:2])
    low, high = table[RANGES + EDGES * TILES :].reshape(2, TILES, TILE)[:, t]
    there = call.box("K_box").tokens(place, lane) >= 0
    law(np.array_equal(there, low < high), "the sparse keys that are seen are not those that a descriptor reaches")
    return Tile(k, v, low, high, every, until)


def _add_sparse(call: Call, at: tuple[int, int, int], keys: list[Tile], sums: Reals) -> None:
    """What tile i of queries has of some tiles of keys. at: head of keys of all batch rows, which query head, i."""
    member, h, i = at
    batch, head = _at(call, member, h)
    q, do, before = (call.box(name).load(batch, head, i * TILE, 0) for name in ("Q_box", "DOut_box", "DQ_box"))
    number = member * call.integer("share") + h
    lse, delta = (_clamped(call, name, number, i) for name in ("Lse", "Delta"))
    dq = np.zeros((TILE, TILE))
    for t, tile in enumerate(keys):
        p, ds = _pair(i, tile, Queries(q, do, lse, delta), call.real("scale"), call.integer("tokens"))
        sums[t, 0] += ds @ q
        sums[t, 1] += p @ do
        dq += ds.T @ tile.k
    call.box("DQ_box").store(dq * call.real("scale") + before, batch, head, i * TILE, 0)


def _clamped(call: Call, name: str, head: int, i: int) -> Reals:
    """Numbers of a tile of queries; beyond the last the last one's."""
    length = call.integer("tokens")
    return call.flat(name).load(head * length + np.minimum(i * TILE + np.arange(TILE), length - 1))


def reduce_partials(call: Call) -> None:
    """Add the sums of all programs to DK and DV of the sparse keys."""
    parts, first, step, count = (call.integer(name) for name in ("parts", "first", "step", "keys"))
    some = -(-count // REDUCED)
    for program in range(call.grid[0]):
        member, block = divmod(program, some)
        batch, head = divmod(member, call.integer("kv_heads"))
        key = block * REDUCED + np.arange(min(REDUCED, count - block * REDUCED))
        tile = member * parts * TILES * SUMS + key // TILE * SUMS + key % TILE * TILE
        place = np.arange(parts)[:, None, None] * TILES * SUMS + tile[:, None] + np.arange(TILE)
        for name, at, scale in (("DK", 0, call.real("scale")), ("DV", TILE * TILE, 1.0)):
            more = call.flat("Partial").load(place + at).sum(0)
            tensor, where = call.tensor(name), (batch, head, first + step * key)
            tensor.store(tensor.load(*where) + more * scale, *where)
