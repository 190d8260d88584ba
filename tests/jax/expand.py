"""How often the tables of a planned mask visit each pair, counted in numpy from nothing but the tables."""

from itertools import product

import numpy as np

from weft.jax.rows import ABSENT
from weft.jax.structure import BlockLoop


def visits(planned, batch, kv_heads, group):
    """(batch, kv_heads * group, m, n) of counts."""
    structure = planned.structure
    counts = np.zeros((batch, kv_heads, group, structure.m, structure.n), np.int64)
    for program, tables in zip(structure.programs, planned.tables, strict=True):
        told = any(one is not None for one in structure.unit)
        places = tables["places"][: int(tables["count"][0])] if told else np.zeros((1, 4), np.int64)
        for variant, *first in places.tolist():
            here = tuple(
                slice(at, at + unit) if unit else slice(None) for at, unit in zip(first, structure.unit, strict=True)
            )
            for loop, stack in zip(program.loops, tables["loops"], strict=True):
                own = {name: table[variant] for name, table in stack.items()}
                (blocks if isinstance(loop, BlockLoop) else tiles)(loop, own, counts[here])
    return counts.reshape(batch, kv_heads * group, structure.m, structure.n)


def tiles(loop, tables, counts):
    """Add what a tile loop visits to counts (..., m, n)."""
    sizes = [int(count) for count in tables["counts"]]
    for index in product(*map(range, sizes)):
        q, k, live = np.zeros(1, np.int64), np.zeros(1, np.int64), np.ones((1, 1), bool)
        for at, (number, axis) in enumerate(zip(index, loop.axes, strict=True)):
            q_phase, q_first, k_phase, k_first, k_count = tables[f"tiles{at}"][number].tolist()
            assert 0 <= q_first <= axis.q_positions - axis.box
            assert axis.width <= axis.k_positions
            assert at == 0 or k_count <= axis.width
            rows = (q_first + np.arange(axis.box)) * axis.q_step + q_phase
            positions = np.arange(k_first, k_first + k_count)
            bounds = tables[f"bounds{at}"][number]
            here = (positions >= bounds[:, :1]) & (positions < bounds[:, 1:])
            assert (rows[here.any(axis=1)] < axis.rows).all()
            keys = positions * axis.k_step + k_phase
            assert (keys[here.any(axis=0)] < axis.keys).all()
            q = (q[:, None] * axis.rows + rows).reshape(-1)
            k = (k[:, None] * axis.keys + keys).reshape(-1)
            live = (live[:, None, :, None] & here[None, :, None, :]).reshape(len(q), len(k))
        some_q, some_k = live.any(axis=1), live.any(axis=0)
        q, k, live = q[some_q], k[some_k], live[np.ix_(some_q, some_k)]
        if loop.q_cut:
            live = live & tables["queries_live"][q][:, None]
        if loop.k_cut:
            live = live & tables["keys_live"][k]
        q = tables["queries"][q] if loop.q_listed else q + loop.q_origin
        k = tables["keys"][k] if loop.k_listed else k + loop.k_origin
        assert (q < ABSENT).all()
        assert (k < ABSENT).all()
        counts[..., q[:, None], k[None, :]] += live


def blocks(loop, tables, counts):
    """Add what a block loop visits to counts (..., m, n)."""
    m, n = counts.shape[-2:]
    for row, first, many in tables["rows"][: int(tables["counts"][0])].tolist():
        for column, place in tables["blocks"][first : first + many].tolist():
            live = np.unpackbits(tables["bits"][place], axis=1).astype(np.int64)
            here = counts[..., 64 * row : 64 * row + 64, 64 * column : 64 * column + 64]
            here += live[: m - 64 * row, : n - 64 * column]
