"""Which pairs of a tile dropout keeps, by Philox4x32-7 of (seed, b, h, q, k): `weft.score.dropout` is the law."""

from collections import namedtuple

import triton
import triton.language as tl

from weft.score import dropout

ROUNDS = tl.constexpr(dropout.ROUNDS)
FIRST, SECOND = tl.constexpr(dropout.MULTIPLIERS[0]), tl.constexpr(dropout.MULTIPLIERS[1])
BUMP_0, BUMP_1 = tl.constexpr(dropout.BUMPS[0]), tl.constexpr(dropout.BUMPS[1])

HEADER = tl.constexpr(dropout.HEADER)

# What decides it: the key, two unsigned integers of 32 bits; 16 bits below which a pair is dropped; what kept weights
# are multiplied by. head: its number. seed: a pointer to it, which numbers of a whole follow.
Dropping = namedtuple("Dropping", "key_0 key_1 below scale head seed")


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
def kept(C: tl.constexpr, p, scores, rows, tile):
    """Weights (rows, cols) of a tile, 0 where their pair is dropped."""
    below = scores.dropping.below.to(tl.uint32) << 16
    if C.renumbered:
        half = _renumbered(C, scores, rows, tile)
    elif C.neighbours:
        half = _halves(C, scores, rows.number, tile.visit.part.column, rows.first, tile.at)
    else:
        half = _halves(C, scores, rows.token, tile.token, 0, 0)
    if C.direct:  # LLVM would round both first, and choose between halves of a register
        found = tl.inline_asm_elementwise(
            "{ .reg .pred kept; setp.ge.u32 kept, $2, $3; selp.f32 $0, $1, 0f00000000, kept; }", "=f,f,r,r",
            [p, half, below], dtype=tl.float32, is_pure=True, pack=1,
        )  # fmt: skip
    else:
        found = tl.where(half >= below, p, 0.0)
    return found


@triton.jit
def _renumbered(C: tl.constexpr, scores, rows, tile):
    """The 16 bits of each pair by the numbers of rows and columns in the whole: of consecutive ones together, as of
    tiles.
    """
    seed = scores.dropping.seed
    m, n = tl.load(seed + 2), tl.load(seed + 3)
    mine, theirs, many, others = seed + HEADER, seed + HEADER + m, m, n
    if C.of_keys:
        mine, theirs, many, others = theirs, mine, n, m
    row = tl.load(mine + rows.token, mask=(rows.token >= 0) & (rows.token < many), other=0).to(tl.int32)
    column = tl.load(theirs + tile.token, mask=(tile.token >= 0) & (tile.token < others), other=0).to(tl.int32)
    if C.gathered or C.rank == 0:
        found = _halves(C, scores, row, column, 0, 0)
    else:
        row_0, column_0 = _first(row, C.rows), _first(column, C.cols)
        whole = _last(row, C.rows) - row_0 == C.rows - 1
        whole &= _last(column, C.cols) - column_0 == C.cols - 1
        if whole & ((row_0 | column_0) % 16 == 0):
            found = _halves(C, scores, tl.arange(0, C.rows), tl.arange(0, C.cols), row_0, column_0)
        else:
            found = _halves(C, scores, row, column, 0, 0)
    return found


@triton.jit
def _first(x, N: tl.constexpr):
    return tl.sum(tl.where(tl.arange(0, N) == 0, x, 0), 0)


@triton.jit
def _last(x, N: tl.constexpr):
    return tl.sum(tl.where(tl.arange(0, N) == N - 1, x, 0), 0)


@triton.jit
def _halves(C: tl.constexpr, scores, mine, theirs, first, at):
    """The 16 bits of each pair, above others: of the tokens first + mine and at + theirs. first, at: multiples of 16,
    which are whole groups.

    It is written for each pair. A thread that holds several pairs of one call of Philox makes it once. Mine and theirs
    count rows and columns, so the compiler sees that the arguments are the same. Such eight pairs are the queries q and
    q ^ 8 against the keys k, k ^ 1, k ^ 8 and k ^ 9.
    """
    if C.of_keys:
        q, k, q_first, k_first = theirs[None, :], mine[:, None], at, first
    else:
        q, k, q_first, k_first = mine[:, None], theirs[None, :], first, at
    # bits that a thread's own pairs differ in come last: what is the same for all of them is found to be so
    queries = ((q_first >> 1) + (q & 6)) + (((q >> 4) << 3) + (q & 1))
    keys = ((k_first >> 2) + ((k & 6) >> 1)) + ((k >> 4) << 2)
    x0, x1, x2, x3 = _philox(C, scores, queries, keys)
    later = (k & 8) != 0
    word = tl.where((q & 8) != 0, tl.where(later, x3, x2), tl.where(later, x1, x0))
    shift = (16 - (k & 1) * 16).to(tl.uint32)  # those of an odd key lie there already
    if C.direct:  # LLVM would multiply once more for the lower bits, in two rounds
        word, shift = tl.broadcast(word, shift)
        found = tl.inline_asm_elementwise(
            "shl.b32 $0, $1, $2;", "=r,r,r", [word, shift], dtype=tl.uint32, is_pure=True, pack=1
        )  # fmt: skip
    else:
        found = word << shift
    return found


@triton.jit
def _philox(C: tl.constexpr, scores, x0, x1):
    """Four words of groups of queries x0 and of keys x1, which broadcast."""
    x0, x1 = x0.to(tl.uint32), x1.to(tl.uint32)
    x2, x3 = scores.dropping.head.to(tl.uint32), scores.b.to(tl.uint32)
    key_0, key_1 = scores.dropping.key_0, scores.dropping.key_1
    for _ in tl.static_range(ROUNDS):
        one, other = _product(C, x0, FIRST), _product(C, x2, SECOND)
        x0, x1 = other[0] ^ x1 ^ key_0, other[1]
        x2, x3 = one[0] ^ x3 ^ key_1, one[1]
        key_0 = tl.add(key_0, BUMP_0, sanitize_overflow=False)
        key_1 = tl.add(key_1, BUMP_1, sanitize_overflow=False)
    return x0, x1, x2, x3


@triton.jit
def _product(C: tl.constexpr, x, factor: tl.constexpr):
    """The upper and the lower 32 bits of a product: one instruction where the halves would be two."""
    if C.direct:  # LLVM tells halves apart in some rounds
        high, low = tl.inline_asm_elementwise(
            "{ .reg .b64 all; mul.wide.u32 all, $2, $3; mov.b64 {$1, $0}, all; }", "=r,=r,r,r",
            [x, factor], dtype=(tl.uint32, tl.uint32), is_pure=True, pack=1,
        )  # fmt: skip
    else:
        product = x.to(tl.uint64) * factor
        high, low = (product >> 32).to(tl.uint32), product.to(tl.uint32)
    return high, low
