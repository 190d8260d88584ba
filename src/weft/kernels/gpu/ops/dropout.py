"""Which pairs of a tile dropout keeps, by Philox4x32-7 of (seed, b, h, q, k): `weft.score.dropout` is the law."""

from collections import namedtuple

import triton
import triton.language as tl

from weft.score import dropout

ROUNDS = tl.constexpr(dropout.ROUNDS)
FIRST, SECOND = tl.constexpr(dropout.MULTIPLIERS[0]), tl.constexpr(dropout.MULTIPLIERS[1])
TOGETHER = tl.constexpr(16)  # consecutive queries, or keys, whose groups are all in them
BUMP_0, BUMP_1 = tl.constexpr(dropout.BUMPS[0]), tl.constexpr(dropout.BUMPS[1])

HEADER = tl.constexpr(dropout.HEADER)

# What decides it: the key, two unsigned integers of 32 bits; 16 bits below which a pair is dropped; what kept weights
# are multiplied by. head: its number. told: a pointer to the seed, which numbers of a whole follow.
Dropping = namedtuple("Dropping", "key_0 key_1 below scale head told")


@triton.jit
def dropping_of(C: tl.constexpr, scaling, head):
    """scaling: see `scores.Scaling`."""
    seed, below, scale = scaling.dropping
    bits = tl.load(seed)
    if C.renumbered:
        head += tl.load(seed + 1).to(tl.int32)
    return Dropping(
        (bits & 0xFFFFFFFF).to(tl.uint32), ((bits >> 32) & 0xFFFFFFFF).to(tl.uint32), below, scale, head, seed
    )  # fmt: skip


@triton.jit
def keeps(C: tl.constexpr, scores, rows, tile):
    """Whether the pairs (rows, cols) of a tile are kept."""
    if C.renumbered:
        found = _kept_renumbered(C, scores, rows, tile)
    elif C.rank < 2 and not C.gathered:
        whole = tl.max(rows.token, 0) - rows.first == C.rows - 1  # no row stands for others
        if C.rank == 1:
            whole &= tile.visit.line.step == 1
        if whole & ((rows.first | tile.at) % TOGETHER == 0):
            found = _kept_together(C, scores, rows.first, tile.at)
        else:
            found = _kept_apart(C, scores, rows.token, tile.token)
    else:
        found = _kept_apart(C, scores, rows.token, tile.token)
    return found


@triton.jit
def _kept_renumbered(C: tl.constexpr, scores, rows, tile):
    """By the numbers of rows and columns in the whole: of consecutive ones together, as of tiles."""
    seed = scores.dropping.told
    m, n = tl.load(seed + 2), tl.load(seed + 3)
    mine, theirs, many, others = seed + HEADER, seed + HEADER + m, m, n
    if C.of_keys:
        mine, theirs, many, others = theirs, mine, n, m
    row = tl.load(mine + rows.token, mask=(rows.token >= 0) & (rows.token < many), other=0).to(tl.int32)
    column = tl.load(theirs + tile.token, mask=(tile.token >= 0) & (tile.token < others), other=0).to(tl.int32)
    if C.gathered or C.rank == 0:
        found = _kept_apart(C, scores, row, column)
    else:
        row_0, column_0 = _first(row, C.rows), _first(column, C.cols)
        whole = _last(row, C.rows) - row_0 == C.rows - 1
        whole &= _last(column, C.cols) - column_0 == C.cols - 1
        if whole & ((row_0 | column_0) % TOGETHER == 0):
            found = _kept_together(C, scores, row_0, column_0)
        else:
            found = _kept_apart(C, scores, row, column)
    return found


@triton.jit
def _first(x, N: tl.constexpr):
    return tl.sum(tl.where(tl.arange(0, N) == 0, x, 0), 0)


@triton.jit
def _last(x, N: tl.constexpr):
    return tl.sum(tl.where(tl.arange(0, N) == N - 1, x, 0), 0)


@triton.jit
def _kept_apart(C: tl.constexpr, scores, rows, columns):
    """Of any tokens: a call of Philox for each pair, which uses 16 of its 128 bits."""
    if C.of_keys:
        q, k = columns[None, :], rows[:, None]
    else:
        q, k = rows[:, None], columns[None, :]
    x0, x1, x2, x3 = _philox(scores, _group(q), _group(k) >> 1)
    later = ((k >> 3) & 1) != 0
    word = tl.where(((q >> 3) & 1) != 0, tl.where(later, x3, x2), tl.where(later, x1, x0))
    half = (word >> ((k & 1) * 16).to(tl.uint32)) & 0xFFFF
    return half.to(tl.int32) >= scores.dropping.below


@triton.jit
def _kept_together(C: tl.constexpr, scores, row, column):
    """Of consecutive tokens from multiples of TOGETHER on: a call of Philox for eight pairs, queries q and q ^ 8, keys
    k, k ^ 1, k ^ 8 and k ^ 9.
    """
    if C.of_keys:
        q, k = (column >> 1) + tl.arange(0, C.cols // 2)[None, :], (row >> 2) + tl.arange(0, C.rows // 4)[:, None]
    else:
        q, k = (row >> 1) + tl.arange(0, C.rows // 2)[:, None], (column >> 2) + tl.arange(0, C.cols // 4)[None, :]
    words, below = _philox(scores, q, k), scores.dropping.below
    # axes that follow: the half of a word, bit 3 of k, bit 3 of q
    early = tl.join(_halves(words[0], below), _halves(words[1], below))
    late = tl.join(_halves(words[2], below), _halves(words[3], below))
    every = tl.join(early, late)
    if C.of_keys:  # keys by 4, queries by 8
        every = tl.reshape(every, (C.rows // 16, 4, C.cols // 16, 8, 2, 2, 2))
        every = tl.permute(every, (0, 5, 1, 4, 2, 6, 3))
    else:
        every = tl.reshape(every, (C.rows // 16, 8, C.cols // 16, 4, 2, 2, 2))
        every = tl.permute(every, (0, 6, 1, 2, 5, 3, 4))
    return tl.reshape(every, (C.rows, C.cols)) != 0


@triton.jit
def _halves(word, below):
    """Whether the pairs of both halves of words are kept, the low one first, as one more axis."""
    low, high = (word & 0xFFFF).to(tl.int32), (word >> 16).to(tl.int32)
    return tl.join((low >= below).to(tl.int8), (high >= below).to(tl.int8))


@triton.jit
def _philox(scores, x0, x1):
    """Four words of groups of queries x0 and of keys x1, which broadcast."""
    x0, x1 = x0.to(tl.uint32), x1.to(tl.uint32)
    x2, x3 = scores.dropping.head.to(tl.uint32), scores.b.to(tl.uint32)
    key_0, key_1 = scores.dropping.key_0, scores.dropping.key_1
    for _ in tl.static_range(ROUNDS):
        high, low = tl.umulhi(x0, FIRST), tl.mul(x0, FIRST, sanitize_overflow=False)
        x0, x1 = tl.umulhi(x2, SECOND) ^ x1 ^ key_0, tl.mul(x2, SECOND, sanitize_overflow=False)
        x2, x3 = high ^ x3 ^ key_1, low
        key_0 = tl.add(key_0, BUMP_0, sanitize_overflow=False)
        key_1 = tl.add(key_1, BUMP_1, sanitize_overflow=False)
    return x0, x1, x2, x3


@triton.jit
def _group(x):
    """The number of the group of an index: without its bit 3."""
    return ((x >> 4) << 3) | (x & 7)
