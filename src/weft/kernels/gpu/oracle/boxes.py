"""Gradients on a grid by two kernels of warp groups: DQ by boxes of queries, DK and DV by boxes of keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from weft.kernels.gpu.oracle.backward import row_numbers, subtracted
from weft.kernels.gpu.oracle.forward import numbers_of
from weft.kernels.gpu.oracle.grids import GridBox, Rows, Tables, Walk, groups_of, own_sides
from weft.kernels.gpu.oracle.laws import law
from weft.kernels.gpu.oracle.memory import Bools, Call, Ints, Reals
from weft.kernels.gpu.oracle.tables import Owner

Pair = tuple[Reals, Reals]


class Own(NamedTuple):
    """A group's rows that exist: their tokens, and two tensors of them."""

    tokens: Ints
    pair: Pair


def _own(call: Call, rows: Rows, heads: tuple[int, int], names: tuple[str, str]) -> Own:
    found = [GridBox(call, name, own_sides(call)) for name in names]
    s, g = (box.load(heads, rows.first)[rows.exist] for box in found)
    return Own(np.ravel_multi_index(tuple(rows.at), found[0].shape)[rows.exist], (s, g))


def _tiles(
    call: Call, rows: Rows, walk: Walk, heads: tuple[int, int], names: tuple[str, str]
) -> Iterator[tuple[Ints, Bools, Pair]]:  # fmt: skip
    """(tokens, live pairs, two tensors) of each tile that a group walks; tokens beyond the grid are -1."""
    boxes = [GridBox(call, name, walk.sides) for name in names]
    begin, end, below, beyond = walk.seen
    for j, at in enumerate(walk.tiles):
        tokens = boxes[0].tokens(at)
        live = walk.mask(at)[rows.exist]
        law(not live[:, tokens < 0].any(), "a row sees what is beyond the grid")
        law(begin <= j < end or not live.any(), "a tile that a group passes over has a live pair")
        law(not (begin <= j < end and below <= j < beyond) or live.all(), "a tile that is not masked is not full")
        if begin <= j < end:
            yield tokens, live, (boxes[0].load(heads, at), boxes[1].load(heads, at))


def query_gradient(call: Call, tables: Tables, owner: Owner) -> None:
    """DQ of a block, and what its queries' scores subtract."""
    scale = call.real("scale")
    for rows, walk in groups_of(call, tables):
        tokens, (q, do) = _own(call, rows, (owner.batch, owner.head), ("Q_box", "DOut_box"))
        lse, delta = (x[:, None] for x in row_numbers(call, owner, tokens))
        dq = np.zeros_like(q)
        for _, live, (k, v) in _tiles(call, rows, walk, (owner.batch, owner.kv_head), ("K_box", "V_box")):
            p = np.exp(np.where(live, q @ k.T * scale - lse, -np.inf))
            dq += (p * np.where(live, do @ v.T - delta, 0.0)) @ k
        call.tensor("DQ").store(dq * scale, owner.batch, owner.head, tokens)


def key_gradients(call: Call, tables: Tables, owner: Owner) -> None:
    """DK and DV of a block, of all heads that share its keys."""
    scale = call.real("scale")
    for rows, walk in groups_of(call, tables):
        own, (k, v) = _own(call, rows, (owner.batch, owner.kv_head), ("K_box", "V_box"))
        dk, dv = np.zeros_like(k), np.zeros_like(v)
        for head in range(owner.head, owner.head + owner.heads):
            for tokens, live, (q, do) in _tiles(call, rows, walk, (owner.batch, head), ("Q_box", "DOut_box")):
                numbers = numbers_of(call, owner.batch, head, np.maximum(tokens, 0), "their_length")
                lse, delta = subtracted(call, numbers)
                p = np.exp(np.where(live, k @ q.T * scale - lse, -np.inf))
                dk, dv = dk + (p * np.where(live, v @ do.T - delta, 0.0)) @ q, dv + p @ do
        call.tensor("DK").store(dk * scale, owner.batch, owner.kv_head, own)
        call.tensor("DV").store(dv, owner.batch, owner.kv_head, own)
