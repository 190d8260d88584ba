"""Kernels of components: a tile of queries with all of its keys, batch row after batch row."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import numpy as np

from weft.kernels.gpu.components.tables import RECORD, SIZE
from weft.kernels.gpu.oracle.laws import law
from weft.kernels.gpu.oracle.memory import Bools, Call, Ints, Reals
from weft.kernels.gpu.oracle.numbers import Scoring, SoftMaximum


class Tile(NamedTuple):
    """Queries and keys at their places, and which pairs are live: (queries, keys)."""

    queries: Ints
    keys: Ints
    live: Bools
    q_places: Ints
    k_places: Ints


def forward(call: Call) -> None:
    """Out and Lse."""
    scoring = Scoring(call, call.integer("shift"))
    for _, batch, head, tile in _programs(call):
        q, k, v = _read(call, batch, head, tile)
        s = np.where(tile.live, scoring.scores(q @ k.T, (batch, head), tile.queries, tile.keys).s, -np.inf)
        sums = SoftMaximum(tile.queries.size, v.shape[1])
        sums.add(s, v)
        out, lse = sums.finish()
        call.tensor("Out").store(out, batch, head, tile.queries)
        call.flat("Lse").store(lse, _rows(call, batch, head, tile))


def gradients(call: Call) -> None:
    """DQ, DK, DV, and of each program the sums for tables."""
    scoring, rules = Scoring(call, call.integer("shift")), call.spec.rules
    shape = (*call.grid[::-1], SIZE, SIZE)
    totals = {one.number: np.zeros(shape) for one in rules.entries}
    for (number, part), batch, head, tile in _programs(call):
        q, k, v = _read(call, batch, head, tile)
        out, dout = (call.tensor(name).load(batch, head, tile.queries) for name in ("Out", "DOut"))
        rows = _rows(call, batch, head, tile)
        lse = call.flat("Lse").load(rows)
        delta = (out * dout).sum(1)
        if call.spec.lse_gradient:
            delta = delta - np.where(lse == -np.inf, 0.0, call.flat("DLse").load(rows))
        found = scoring.scores(q @ k.T, (batch, head), tile.queries, tile.keys)
        s = np.where(tile.live, found.s, -np.inf)
        p = np.exp(s - np.where(lse == -np.inf, 0.0, lse)[:, None])
        ds = np.where(p == 0, 0.0, p * (dout @ v.T - delta[:, None]))
        call.tensor("DV").store(p.T @ dout, batch, head, tile.keys)
        call.tensor("DK").store(scoring.scale * (ds.T @ q), batch, head, tile.keys)
        call.tensor("DQ").store(scoring.scale * (ds @ k), batch, head, tile.queries)
        for one in rules.entries:
            by = np.where(ds == 0, 0.0, ds * found.entries[one.number][2])
            totals[one.number][part, head, number][np.ix_(tile.q_places, tile.k_places)] += by
    for one in rules.entries:
        call.flat(one.pointer).store(totals[one.number].reshape(-1), np.arange(totals[one.number].size))


def _programs(call: Call) -> Iterator[tuple[tuple[int, int], int, int, Tile]]:
    """((number of a tile, part), batch row, head, tile) of each step of each program."""
    words, (tiles, heads, parts) = call.table(), call.grid
    law(words.size == tiles * RECORD, f"{tiles} tiles are launched, and tables have {words.size} integers")
    law(heads == call.integer("heads"), "every head has programs")
    per, batch = call.integer("per"), call.integer("batch")
    law((parts - 1) * per < batch <= parts * per, f"{parts} programs of {per} batch rows have {batch}")
    every = [_tile(words[number * RECORD : (number + 1) * RECORD]) for number in range(tiles)]
    for number, head, part in product(range(tiles), range(heads), range(parts)):
        for row in range(part * per, min(batch, part * per + per)):
            yield (number, part), row, head, every[number]


def _tile(words: Ints) -> Tile:
    queries, keys = words[:SIZE], words[SIZE : 2 * SIZE]
    bits = words[2 * SIZE :].astype(np.int32).view("<u4").reshape(SIZE, 2)
    live = np.unpackbits(bits.view(np.uint8).reshape(SIZE, 8), axis=1, bitorder="little").view(np.bool_)
    law(not live[queries < 0].any() and not live[:, keys < 0].any(), "a pair without a query or a key is live")
    rows, columns = np.flatnonzero(queries >= 0), np.flatnonzero(keys >= 0)
    return Tile(queries[rows], keys[columns], live[np.ix_(rows, columns)], rows, columns)


def _read(call: Call, batch: int, head: int, tile: Tile) -> tuple[Reals, Reals, Reals]:
    q = call.tensor("Q").load(batch, head, tile.queries)
    k, v = (call.tensor(name).load(batch, head, tile.keys) for name in ("K", "V"))
    return q, k, v


def _rows(call: Call, batch: int, head: int, tile: Tile) -> Ints:
    return (batch * call.integer("heads") + head) * call.integer("length") + tile.queries
