"""Patterns printed as mask functions: every leaf stated once more, pair by pair, in Python's own operators.

`as_function(pattern, m, n)` is a function of (b, h, q, k) whose mask at (m, n) is the pattern's. It is written from the
definitions of the library, not from the classes that carry them. So tests can compare the two.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from itertools import accumulate
from math import prod
from operator import and_, or_
from typing import Any

import numpy as np

from weft.pattern import algebra as ops
from weft.pattern.algebra import Pattern
from weft.pattern.bounds import IntTable

Mask = Callable[[Any, Any, Any, Any], Any]
FAR = 1 << 32  # beyond any token
LEAVES: dict[str, Callable[..., Mask]] = {}


def as_function(pattern: Pattern, m: int, n: int) -> Mask:
    """The pattern at m queries and n keys as a function of (b, h, q, k)."""
    if isinstance(pattern, ops.Call):
        args = {name: _plain(value) for name, value in pattern.args}
        align = args.pop("align", None)
        return _aligned(LEAVES[pattern.name](m, n, **args), n - m if align == "bottom-right" else 0)
    if isinstance(pattern, ops.Shift):
        return _shifted(as_function(pattern.part, m, n), pattern.q, pattern.k, m, n)
    parts = [as_function(part, m, n) for part in pattern.parts]  # type: ignore[attr-defined]
    if isinstance(pattern, ops.Not):
        return lambda b, h, q, k: ~parts[0](b, h, q, k)
    join = and_ if isinstance(pattern, ops.And) else or_
    return lambda b, h, q, k: reduce(join, [part(b, h, q, k) for part in parts])


def _plain(value: Any) -> Any:
    if isinstance(value, IntTable):
        return value.array.tolist()
    return [_plain(x) for x in value] if isinstance(value, tuple) else value


def _aligned(mask: Mask, shift: int) -> Mask:
    return (lambda b, h, q, k: mask(b, h, q + shift, k)) if shift else mask


def _shifted(mask: Mask, dq: int, dk: int, m: int, n: int) -> Mask:
    """What moves in from outside is dead; the part is never asked outside its own lengths."""

    def shifted(b, h, q, k):
        i, j = q - dq, k - dk
        inside = (i >= 0) & (i < m) & (j >= 0) & (j < n)
        return inside & mask(b, h, np.clip(i, 0, max(0, m - 1)), np.clip(j, 0, max(0, n - 1)))

    return shifted


def _leaf(rule: Callable[..., Mask]) -> Callable[..., Mask]:
    LEAVES[rule.__name__.strip("_")] = rule
    return rule


def _pairs(condition: Callable[[Any, Any], Any]) -> Mask:
    return lambda b, h, q, k: condition(q, k)


def _always(q: Any, k: Any, value: bool = True) -> Any:
    """True, or False, for every pair; q may be below 0 where the last query stands beside the last key."""
    return (q > -FAR) & (k > -FAR) if value else (q < -FAR) & (k < -FAR)


# ---- windows and strides --------------------------------------------------------------------------------------------
@_leaf
def full(m, n):
    return _pairs(_always)


@_leaf
def nothing(m, n):
    return _pairs(lambda q, k: _always(q, k, False))


@_leaf
def causal(m, n, offset=0):
    return _pairs(lambda q, k: k <= q + offset)


@_leaf
def window(m, n, left=None, right=None):
    def near(q, k):
        live = _always(q, k)
        live = live if left is None else live & (q - k <= left)
        return live if right is None else live & (k - q <= right)

    return _pairs(near)


@_leaf
def dilated(m, n, left, right, step):
    return _pairs(lambda q, k: (abs(k - q) % step == 0) & (q - k <= left * step) & (k - q <= right * step))


@_leaf
def periodic_keys(m, n, step, phase=None):
    phase = step - 1 if phase is None else phase
    return _pairs(lambda q, k: _always(q, k) & (k % step == phase))


@_leaf
def strided(m, n, stride):
    return _pairs(lambda q, k: (k <= q) & ((q - k < stride) | ((q - k) % stride == 0)))


@_leaf
def fixed(m, n, stride, summary=1):
    return _pairs(lambda q, k: (k <= q) & ((q // stride == k // stride) | (k % stride >= stride - summary)))


@_leaf
def longformer(m, n, window, global_tokens=0, dilation=1):
    half = window // 2

    def near_or_global(q, k):
        near = (abs(q - k) <= half * dilation) & ((q - k) % dilation == 0)
        return near | (k < global_tokens) | ((q >= 0) & (q < global_tokens))

    return _pairs(near_or_global)


# ---- chunks, blocks, documents --------------------------------------------------------------------------------------
@_leaf
def chunks(m, n, size):
    return _pairs(lambda q, k: q // size == k // size)


@_leaf
def blocks(m, n, block, pairs):
    rows, cols = (block, block) if isinstance(block, int) else block

    def listed(q, k):
        return reduce(or_, [(q // rows == i) & (k // cols == j) for i, j in pairs], _always(q, k, False))

    return _pairs(listed)


@_leaf
def random_blocks(m, n, block, count, seed=0):
    """The draw itself is taken from the pattern: what it means is a table of blocks."""
    from weft.pattern.composites import random_blocks as drawn

    size = -(-m // block), -(-n // block)
    table = drawn(block, count, seed=seed).to_dense(m, n)[::block, ::block]
    assert table.shape == size
    return _pairs(lambda q, k: table[q // block, k // block])


@_leaf
def bigbird(m, n, **given):
    """For M == N: with an alignment the random blocks and the others would count queries differently."""
    assert m == n
    defaults = {"block": 64, "window": 3, "global_blocks": 1, "random": 3, "seed": 0}
    block, window, global_blocks, random, seed = {**defaults, **given}.values()
    rows, cols = -(-m // block), -(-n // block)
    drawn = random_blocks(m, n, block, random, seed) if random else None

    def live(b, h, q, k):
        i, j = q // block, k // block
        near = abs(i - j) <= window // 2 if window else _always(q, k, False)
        ends = (i < global_blocks) | (i >= rows - global_blocks) | (j < global_blocks) | (j >= cols - global_blocks)
        near = near | ends if global_blocks else near
        return near | drawn(b, h, q, k) if drawn else near

    return live


@_leaf
def documents(m, n, lengths=None, ids=None, cu_seqlens=None, key_ids=None):
    if key_ids is not None:
        of_q, of_k = np.asarray(ids, np.int64), np.asarray(key_ids, np.int64)
        return _pairs(lambda q, k: of_q[q] == of_k[k])
    if ids is None:
        lengths = np.diff(cu_seqlens) if lengths is None else lengths
        ids = np.repeat(np.arange(len(lengths)), lengths)
    table = np.asarray(ids, np.int64)
    return _pairs(lambda q, k: table[q] == table[k])


@_leaf
def padding(m, n, lengths, rows=False):
    return _per_row(lengths, lambda q, k, length: (k < length) & (q < length) if rows else _always(q, k) & (k < length))


@_leaf
def prefix(m, n, length):
    return _per_row(length, lambda q, k, at: _always(q, k) & (k < at))


def _per_row(lengths: Any, rule: Callable[[Any, Any, Any], Any]) -> Mask:
    if isinstance(lengths, int):
        return lambda b, h, q, k: rule(q, k, lengths)
    table = np.asarray(lengths, np.int64)
    return lambda b, h, q, k: rule(q, k, table[b])


@_leaf
def global_tokens(m, n, tokens, rows=True, columns=True):
    def chosen(x):
        if isinstance(tokens, int):
            return (x >= 0) & (x < tokens)
        return reduce(or_, [x == token for token in tokens], x < -FAR)

    def live(q, k):
        found = _always(q, k, False)
        found = found | chosen(q) if rows else found
        return found | chosen(k) if columns else found

    return _pairs(live)


# ---- parts and grids ------------------------------------------------------------------------------------------------
@_leaf
def segments(m, n, lengths, patterns):
    starts = [0, *accumulate(lengths)]

    def live(b, h, q, k):
        found = _always(q, k, False)
        for i, length in enumerate(lengths):
            for j, width in enumerate(lengths):
                if length and width and cells[i][j]:
                    at_q, at_k = q - starts[i], k - starts[j]
                    inside = (at_q >= 0) & (at_q < length) & (at_k >= 0) & (at_k < width)
                    local = np.clip(at_q, 0, length - 1), np.clip(at_k, 0, width - 1)
                    found = found | (inside & cells[i][j](b, h, *local))
        return found

    cells = [[_cell(x, a, w) for x, w in zip(row, lengths, strict=True)]
             for row, a in zip(patterns, lengths, strict=True)]  # fmt: skip
    return live


def _cell(cell: Any, m: int, n: int) -> Mask | None:
    if isinstance(cell, Pattern):
        return as_function(cell, m, n)
    return _pairs(_always) if cell else None


@_leaf
def product(m, n, patterns, shape, key_shape=None):
    key_shape = shape if key_shape is None else key_shape
    axes = [as_function(p, i, j) for p, i, j in zip(patterns, shape, key_shape, strict=True)]

    def live(b, h, q, k):
        found = _always(q, k)
        for a, axis in enumerate(axes):
            found = found & axis(b, h, *(x // prod(s[a + 1 :]) % s[a] for x, s in ((q, shape), (k, key_shape))))
        return found

    return live


@_leaf
def neighborhood(m, n, shape, size, **options):
    options = {"stride": 1, "dilation": 1, "causal": False, **options}
    shape = [shape] if isinstance(shape, int) else shape
    spread = [x if isinstance(x, list) else [x] * len(shape) for x in (size, *options.values())]
    rules = list(zip(shape, *spread, strict=True))

    def live(q, k):
        found, inner = _always(q, k), prod(shape)
        for length, *rule in rules:
            inner //= length
            found = found & _neighbors(q // inner % length, k // inner % length, length, rule)
        return found

    return _pairs(live)


def _neighbors(q, k, length, rule):
    """One axis: in the residue class of q, `size` keys around the leader of its group of `stride`, pushed inwards."""
    size, stride, dilation, causal = rule
    same, i, j = q % dilation == k % dilation, q // dilation, k // dilation
    last = (length - 1 - q % dilation) // dilation
    leader = np.minimum(i // stride * stride + (stride - 1 if causal else stride // 2), last)
    if causal:
        return same & (j >= np.maximum(leader - size + 1, 0)) & (j <= i)
    first = np.clip(leader - size // 2, 0, None)
    first = np.minimum(first, last + 1 - size)
    return same & (j >= first) & (j < first + size)


# ---- heads and batch rows -------------------------------------------------------------------------------------------
@_leaf
def per_head(m, n, heads):
    parts = [as_function(part, m, n) for part in heads]
    return lambda b, h, q, k: reduce(or_, [(h == i) & part(b, h, q, k) for i, part in enumerate(parts)])


@_leaf
def per_batch(m, n, rows):
    parts = [as_function(part, m, n) for part in rows]
    return lambda b, h, q, k: reduce(or_, [(b == i) & part(b, h, q, k) for i, part in enumerate(parts)])
