"""The run of live keys of a few rows, read from the records of a plan. Functions of Triton.

A record of a term is CLASSES integers about residue classes, then `bounds` lower and as many upper bounds. Each has
BOUND integers: 0 and a staircase, or 1 and where a step function lies (`tables.term_record`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from weft.kernels.gpu.ops.bounds import FAR, narrow_stair, stair
from weft.kernels.gpu.split_kv import tables as packed

CLASSES, BOUND = tl.constexpr(packed.CLASSES), tl.constexpr(packed.BOUND)


class Run(NamedTuple):
    """Keys of one term: row r sees the places low[r] <= x < high[r] of first, first + step, ...; there are `count`."""

    low: Any
    high: Any
    first: Any
    step: Any
    count: Any


@triton.jit
def run_of(C: tl.constexpr, rows, record):
    """The keys that some of the rows see under one term, all of one residue class, that of row i_0.

    rows: as `rows.Rows`. C: `kernel.Config`.
    """
    i, tables = rows.i, rows.tables
    low, high = rows.least, tl.zeros_like(i) + rows.length
    for b in tl.static_range(C.bounds):
        low = tl.maximum(low, bound(C, tables, record + CLASSES + BOUND * b, i))
        high = tl.minimum(high, bound(C, tables, record + CLASSES + BOUND * (C.bounds + b), i))
    if C.plain:
        seen = rows.sees & (low < high)
        low, high = tl.where(seen, low, FAR), tl.where(seen, high, 0)
        first = tl.min(low, 0)
        run = Run(low - first, high - first, first, 1, tl.maximum(tl.max(high, 0) - first, 0))
    else:
        step, phase, some = class_of(record, rows.i_0)
        seen = rows.sees & (i % tl.load(record + 8) == tl.load(record + 9)) & (low < high) & some
        low, high = tl.where(seen, low, FAR), tl.where(seen, high, 0)
        first, last = tl.min(low, 0), tl.max(high, 0)
        first += ((phase - first) % step + step) % step
        count = tl.maximum(positions(last, first, step), 0)
        run = Run(positions(low, first, step), positions(high, first, step), first, step, count)
    return run


@triton.jit
def bound(C: tl.constexpr, tables, record, i):
    """A bound of the rows i, (rows,)."""
    if C.plain:
        value = narrow_stair(record + 1, i)
    elif C.steps:
        value = tl.zeros_like(i)
        if tl.load(record) == 0:
            value = stair(record + 1, i)
        else:
            value = step_function(tables, record + 1, i)
    else:
        value = stair(record + 1, i)
    return value


@triton.jit
def step_function(tables, record, i):
    """values[number of breaks <= i] by bisection, (rows,); record: places of breaks and values, breaks, rounds."""
    breaks, values = tables + tl.load(record), tables + tl.load(record + 1)
    count, rounds = tl.load(record + 2), tl.load(record + 3)
    found = tl.zeros_like(i)
    for step in range(rounds):
        probe = found + (1 << (rounds - 1 - step))
        there = probe <= count
        below = tl.load(breaks + probe - 1, mask=there, other=0) <= i
        found = tl.where(there & below, probe, found)
    return tl.load(values + found)


@triton.jit
def class_of(record, i):
    """(step, phase, some): keys of row i that obey the congruences of a term are phase modulo step, if some; i >= 0.

    As `Relation.key_classes`, in 64 bits, and nothing below zero: a division rounds towards it.
    """
    step, stride = tl.load(record), tl.load(record + 1)
    common, inverse = tl.load(record + 2), tl.load(record + 3).to(tl.int64)
    key_step, key_phase = tl.load(record + 4), tl.load(record + 5)
    diagonal_step, diagonal_phase = tl.load(record + 6), tl.load(record + 7)
    gap = (i + diagonal_phase) % diagonal_step - key_phase + step
    phase = key_phase + key_step * ((gap // common).to(tl.int64) * inverse % stride).to(tl.int32)
    return step, phase, gap % common == 0


@triton.jit
def positions(bound, first, step):
    """Keys before `bound` among first, first + step, ...; 0 or less if there are none."""
    found = bound - first
    if step != 1:  # a division takes some twenty instructions
        found = (found + step - 1) // step
    return found


@triton.jit
def share(tiles, split, splits):
    """(first, end) of share `split` of all tiles; the first shares have one tile more than others may have."""
    least, more = tiles // splits, tiles % splits
    first = least * split + tl.minimum(split, more)
    return first, first + least + (split < more).to(tl.int32)
