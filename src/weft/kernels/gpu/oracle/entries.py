"""Sums over pairs that are gradients of tables: what kernels add, tile by tile, for each read of a score function."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from weft.kernels.gpu.oracle.forward import numbers_of
from weft.kernels.gpu.oracle.memory import Call, Ints, Reals
from weft.kernels.gpu.oracle.numbers import Scored
from weft.kernels.gpu.score.spec import DENSE, DIAGONALS, OF_ROWS, OFFSETS, ORDERED, SHARED


class Pairs(NamedTuple):
    """Pairs of a tile, queries by keys. by_keys: keys stay, and sums of rows are of these."""

    batch: int
    head: int
    queries: Ints
    keys: Ints
    by_keys: bool = False


def add(call: Call, pairs: Pairs, found: Scored, ds: Reals, p: Reals) -> None:
    """What a tile adds. ds, p: gradients of scores and weights, queries by keys."""
    rules = call.spec.rules
    if rules is None or call.spec.makes == "dv":
        return
    for one in rules.entries:
        _, indices, by = found.entries[one.number]
        _add(call, pairs, (one.pointer, one.kind), indices, np.where(p > 0, ds * by, 0.0))


def _add(call: Call, pairs: Pairs, what: tuple[str, int], indices: tuple[Ints, ...], share: Reals) -> None:
    (name, kind), (batch, head, queries, keys, by_keys) = what, pairs
    mine, theirs = call.integer("my_length"), call.integer("their_length")
    of_head = batch * call.integer("all_heads") + head
    q, k = np.broadcast_arrays(queries[:, None], keys[None, :])
    if kind == OF_ROWS:
        rows, total = (keys, share.sum(0)) if by_keys else (queries, share.sum(1))
        call.flat(name).add(total, numbers_of(call, batch, head, rows))
    elif kind == DENSE:
        some = share != 0
        call.flat(name).store(share[some], (of_head * mine * theirs + q * theirs + k)[some])
    elif kind == SHARED:
        call.flat(name).add(share, q * theirs + k)
    elif kind == DIAGONALS:
        call.flat(name).add(share, of_head * (mine + theirs - 1) + k - q + mine - 1)
    elif kind == ORDERED:  # the oracle's programs come one after the other: all may use the first one's room
        tiles = call.memory.slots[call.slot(name)].shape[2]
        call.flat(name).add(share, of_head * tiles * (mine + theirs - 1) + k - q + mine - 1)
    elif kind == OFFSETS:
        lengths = call.memory.slots[call.slot(name)].shape[2:]
        grid = tuple(length // 2 + 1 for length in lengths)
        coordinates = zip(np.unravel_index(q, grid), np.unravel_index(k, grid), grid, strict=True)
        apart = [of_k - of_q + n - 1 for of_q, of_k, n in coordinates]
        call.flat(name).add(share, of_head * math.prod(lengths) + np.ravel_multi_index(apart, lengths))
    else:
        shape = call.memory.slots[call.slot(name)].shape
        places = np.zeros((), np.int64)
        for index, length in zip(indices, shape, strict=True):
            places = places * length + index
        call.flat(name).add(share, np.broadcast_to(places, share.shape))
