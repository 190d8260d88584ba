"""Which pairs of a tile dropout keeps, by Philox4x32-7 of (seed, b, h, q, k): `weft.score.dropout` is the law."""

from collections import namedtuple

import triton
import triton.language as tl

from weft.score import dropout

ROUNDS = tl.constexpr(dropout.ROUNDS)
FIRST, SECOND = tl.constexpr(dropout.MULTIPLIERS[0]), tl.constexpr(dropout.MULTIPLIERS[1])
BUMP_0, BUMP_1 = tl.constexpr(dropout.BUMPS[0]), tl.constexpr(dropout.BUMPS[1])

# What decides it: the key, two unsigned integers of 32 bits; 16 bits below which a pair is dropped; what kept weights
# are multiplied by.
Dropping = namedtuple("Dropping", "key_0 key_1 below scale")


@triton.jit
def dropping_of(seed, below, scale):
    """seed: a pointer to 64 bits."""
    bits = tl.load(seed)
    return Dropping((bits & 0xFFFFFFFF).to(tl.uint32), ((bits >> 32) & 0xFFFFFFFF).to(tl.uint32), below, scale)


@triton.jit
def keeps(C: tl.constexpr, scores, rows, columns):
    """Whether pairs (rows, cols) are kept; rows (rows,), columns (cols,): tokens."""
    if C.of_keys:
        found = _keeps(scores, columns[None, :], rows[:, None])
    else:
        found = _keeps(scores, rows[:, None], columns[None, :])
    return found


@triton.jit
def _keeps(scores, q, k):
    """One call of Philox serves eight pairs, here each of them once more: queries q and q ^ 8, keys k, k ^ 1, k ^ 8 and
    k ^ 9.
    """
    drop = scores.dropping
    x0, x1 = _group(q).to(tl.uint32), (_group(k) >> 1).to(tl.uint32)
    x2, x3 = scores.h.to(tl.uint32), scores.b.to(tl.uint32)
    key_0, key_1 = drop.key_0, drop.key_1
    for _ in tl.static_range(ROUNDS):
        high, low = tl.umulhi(x0, FIRST), tl.mul(x0, FIRST, sanitize_overflow=False)
        x0, x1 = tl.umulhi(x2, SECOND) ^ x1 ^ key_0, tl.mul(x2, SECOND, sanitize_overflow=False)
        x2, x3 = high ^ x3 ^ key_1, low
        key_0 = tl.add(key_0, BUMP_0, sanitize_overflow=False)
        key_1 = tl.add(key_1, BUMP_1, sanitize_overflow=False)
    later = ((k >> 3) & 1) != 0
    word = tl.where(((q >> 3) & 1) != 0, tl.where(later, x3, x2), tl.where(later, x1, x0))
    half = (word >> ((k & 1) * 16).to(tl.uint32)) & 0xFFFF
    return half.to(tl.int32) >= drop.below


@triton.jit
def _group(x):
    """The number of the group of an index: without its bit 3."""
    return ((x >> 4) << 3) | (x & 7)
