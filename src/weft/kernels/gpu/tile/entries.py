"""Sums over pairs that are gradients of tables: of what score functions read, by what their reads depend on.

C.entries says of each read what that is, one of the numbers below. Those of rows come first, and have a sum in each
row while columns are walked. Rows are queries, or keys where these stay.
"""

from collections import namedtuple

import triton
import triton.language as tl

from weft.kernels.gpu.score import spec

OF_ROWS, DENSE, SHARED = tl.constexpr(spec.OF_ROWS), tl.constexpr(spec.DENSE), tl.constexpr(spec.SHARED)
DIAGONALS, OFFSETS = tl.constexpr(spec.DIAGONALS), tl.constexpr(spec.OFFSETS)
ORDERED = tl.constexpr(spec.ORDERED)

# Where sums go, for the rows of a place. scores: of its head. pointers: of each read where its sums lie.
Into = namedtuple("Into", "place scores pointers")


@triton.jit
def none(C: tl.constexpr):
    """Sums of no columns."""
    found = ()
    for _ in tl.static_range(C.summed):
        found += (tl.zeros((C.rows,), tl.float32),)
    return found


@triton.jit
def add(C: tl.constexpr, into, tile, shares, sums):
    """The sums of rows with those of a tile. shares: of each read the gradients (rows, cols) of what it gave, which are
    added to memory where rows do not sum them.
    """
    found = ()
    for n in tl.static_range(C.summed):
        found += (sums[n] + tl.sum(shares[n], 1),)
    if len(C.entries) > C.summed:
        _add_pairs(C, into, tile, shares)
    return found


@triton.jit
def leave(C: tl.constexpr, into, sums):
    """Add the sums of rows to what other launches leave of them: (batch rows, heads, rows)."""
    place = into.place
    at = (place.head.batch * place.launch.all_heads + into.scores.h) * place.launch.my_length + place.rows.token
    for n in tl.static_range(C.summed):
        tl.atomic_add(into.pointers[n] + at, sums[n], mask=place.rows.valid)


# ---- pairs -----------------------------------------------------------------------------------------------------------
@triton.jit
def _add_pairs(C: tl.constexpr, into, tile, shares):
    place, scores, pointers = into.place, into.scores, into.pointers
    q, k = place.rows.token[:, None], tile.token[None, :]
    valid = place.rows.valid[:, None]
    places = ()
    if C.places is not None:
        places = C.places(scores.b, scores.h, q, k, scores.shift, scores.captured)
    for n in tl.static_range(C.summed, len(C.entries)):
        share = tl.where(valid, shares[n], 0.0)
        if C.entries[n] == DENSE:
            _store_dense(C, into, pointers[n], tile, share)
        elif C.entries[n] == SHARED:
            at = pointers[n] + (q.to(tl.int64) * place.launch.their_length + k)
            tl.atomic_add(at, share, mask=share != 0, sem="relaxed")
        elif C.entries[n] == ORDERED:
            _add_in_order(C, into, pointers[n], tile, share)
        elif C.entries[n] == DIAGONALS:
            _add_diagonals(C, into, pointers[n], tile, share)
        elif C.entries[n] == OFFSETS:
            _add_offsets(C, into, pointers[n], tile, share)
        else:
            at = tl.broadcast_to(places[n - C.paired], share.shape)
            tl.atomic_add(pointers[n] + at, share, mask=share != 0, sem="relaxed")


@triton.jit
def _store_dense(C: tl.constexpr, into, pointer, tile, share):
    """Each pair of each head has a place of its own, and is in one tile."""
    place = into.place
    head = place.head.batch * place.launch.all_heads + into.scores.h
    q, k = place.rows.token[:, None], tile.token[None, :]
    at = pointer + head * place.launch.my_length * place.launch.their_length
    tl.store(at + (q.to(tl.int64) * place.launch.their_length + k), share, mask=share != 0)


@triton.jit
def _add_diagonals(C: tl.constexpr, into, pointer, tile, share):
    """Sums along k - q, from -(queries - 1) on. A tile whose rows and columns have one step is summed first along its
    own diagonals. Any other tile adds one sum after the other.
    """
    place, rows, queries = into.place, into.place.rows, into.place.launch.my_length
    head = place.head.batch * place.launch.all_heads + into.scores.h
    at = pointer + head * (queries + place.launch.their_length - 1) + (queries - 1)
    if C.along and C.rank == 1:  # no line has steps then
        _add_own_diagonals(C, rows, tile, share, at, 1)
    elif C.rank < 2 and not C.gathered:
        step, pace = 1, 1
        if C.rank == 1:
            step, pace = tl.load(place.launch.tables + 3), tile.visit.line.step
        if step == pace:
            _add_own_diagonals(C, rows, tile, share, at, step)
        else:
            apart = tile.token[None, :] - rows.token[:, None]
            tl.atomic_add(at + apart, share, mask=share != 0, sem="relaxed")
    else:
        apart = tile.token[None, :] - rows.token[:, None]
        tl.atomic_add(at + apart, share, mask=share != 0, sem="relaxed")


@triton.jit
def _add_in_order(C: tl.constexpr, into, pointer, tile, share):
    """The same to sums of this program alone, tile by tile: every number is added to in one order. No steps."""
    place, rows, queries = into.place, into.place.rows, into.place.launch.my_length
    head = place.head.batch * place.launch.all_heads + into.scores.h
    length = queries + place.launch.their_length - 1
    at = pointer + (head * tl.num_programs(1) + place.item) * length + (queries - 1)
    tl.debug_barrier()  # other threads may have added to the same numbers in the tile before
    r, c = tl.arange(0, C.rows)[:, None], tl.arange(0, C.cols)[None, :]
    turned, column = tl.gather(share, (r + c) % C.cols, 1), tl.arange(0, C.cols)
    for wrap in tl.static_range((C.rows + C.cols - 2) // C.cols + 1):
        part = tl.sum(tl.where((r + c) // C.cols == wrap, turned, 0.0), 0)
        own, some = at + (tile.at - rows.first + (column - wrap * C.cols)), part != 0
        tl.store(own, tl.load(own, mask=some, other=0.0) + part, mask=some)


@triton.jit
def _add_own_diagonals(C: tl.constexpr, rows, tile, share, at, step):
    """In blocks of 8 x 8 pairs, whose diagonals go from -7 to 7.

    First a thread adds what it has of blocks equally far right of the diagonal. What lies left of a block's own
    diagonal goes to the block to its left, so that each has diagonals from 0 to 7.
    """
    parts = _blocks_by_distance(C, share)
    r, c = tl.arange(0, 8)[None, :, None], tl.arange(0, 8)[None, None, :]
    found = (tl.where(c >= r, 0.0, parts[0]),)
    for n in tl.static_range(1, len(parts)):
        found += (tl.where(c >= r, parts[n - 1], parts[n]),)
    found += (tl.where(c >= r, parts[len(parts) - 1], 0.0),)
    part, group, block, column = _diagonals(C, C.cols_log - 2, found)
    apart = column + 8 * (block - 2) - 16 * group
    tl.atomic_add(at + (tile.at - rows.first + step * apart), part, mask=part != 0, sem="relaxed")


@triton.jit
def _diagonals(C: tl.constexpr, LOG: tl.constexpr, blocks):
    """The sums of blocks (rows // 16, 8, 8) along diagonals. There are 8, as those below 0 go on at the left edge.
    Returns (sums, 16 rows, number of the block, diagonal), (n,) each. blocks: at most 2^LOG.

    Rows are turned, each by one column more than the one before it, so that diagonals become columns. A thread has all
    rows of a column.
    """
    many: tl.constexpr = 1 << LOG
    kept: tl.constexpr = C.rows // 16 * 8 * many
    for _ in tl.static_range(many - len(blocks)):
        blocks += (tl.zeros_like(blocks[0]),)
    flat = tl.reshape(_joined(LOG, blocks), (8 * kept,))  # 16 rows, a row of 8, a column of 8, a block
    number = tl.arange(0, 8 * kept)
    row, rest = number // kept, number % kept
    group, block, column = rest // (8 * many), rest // 8 % many, rest % 8
    turned = tl.gather(flat, ((group * 8 + row) * 8 + ((row + column) & 7)) * many + block, 0)
    rest = tl.arange(0, kept)
    return tl.sum(tl.reshape(turned, (8, kept)), 0), rest // (8 * many), rest // 8 % many, rest % 8


@triton.jit
def _joined(LOG: tl.constexpr, parts):
    """2^LOG tensors of one shape, along more axes of 2, the first of which tells halves apart."""
    for _ in tl.static_range(LOG):
        more = ()
        for n in tl.static_range(len(parts) // 2):
            more += (tl.join(parts[n], parts[n + len(parts) // 2]),)
        parts = more
    return parts[0]


@triton.jit
def _blocks_by_distance(C: tl.constexpr, share):
    """Sums of blocks of 8 x 8 pairs (rows // 16, 8, 8), whose places among columns less those among each 16 rows are
    -1, 0, ... A thread that holds the rows r and r + 8 adds what it has.
    """
    pair = tl.permute(tl.reshape(share, (C.rows // 16, 2, 8, C.cols)), (0, 2, 3, 1))
    upper, lower = tl.split(pair)
    above, below = _blocks(C, upper), _blocks(C, lower)
    found = (below[0],)
    for n in tl.static_range(len(above)):
        found += ((above[n] + below[n + 1]) if n + 1 < len(below) else above[n],)
    return found


@triton.jit
def _blocks(C: tl.constexpr, x):
    """The blocks (n, 8, 8) of a tile (n, 8, cols), from left to right."""
    parts = (x,)
    for _ in tl.static_range(C.cols_log - 3):
        more = ()
        for n in tl.static_range(len(parts)):
            both = tl.reshape(parts[n], (C.rows // 16, 8, 2, parts[n].shape[2] // 2))
            left, right = tl.split(tl.permute(both, (0, 1, 3, 2)))
            more += (left, right)
        parts = more
    return parts


# ---- grids -----------------------------------------------------------------------------------------------------------
@triton.jit
def _add_offsets(C: tl.constexpr, into, pointer, tile, share):
    """Sums along differences of coordinates (B, Hq, 2 X - 1, 2 Y - 1). On two axes whose boxes are 8 wide they are made
    in blocks of 8 x 8 pairs. Any others are added pair by pair.
    """
    place, runs = into.place, tile.visit.part.runs
    size = 1
    for a in tl.static_range(C.rank):
        size *= 2 * runs[a].length - 1
    pointer += (place.head.batch * place.launch.all_heads + into.scores.h) * size
    if C.rank == 2:
        if (runs[1].log == 3) & (tl.load(place.launch.tables + 5) == 3):
            _add_planes(C, place, tile, share, pointer)
        else:
            _add_each(C, place, tile, share, pointer)
    else:
        _add_each(C, place, tile, share, pointer)


@triton.jit
def _add_planes(C: tl.constexpr, place, tile, share, pointer):
    """Of boxes on two axes that are 8 wide: 8 neighbours along the last axis, above each other along the first. Rows
    and columns have the same steps on each axis.
    """
    tall, wide, j = tile.visit.part.runs[0], tile.visit.part.runs[1], tile.visit.j
    down = tall.first + tall.step * (j[0] << tall.log) - tl.load(place.record) + (tall.length - 1)
    along = wide.first + wide.step * (j[1] << 3) - tl.load(place.record + 2) + (wide.length - 1)
    parts = _blocks_by_distance(C, share)
    r, c = tl.arange(0, 8)[None, :, None], tl.arange(0, 8)[None, None, :]
    right, left = (), ()
    for n in tl.static_range(len(parts)):
        right += (tl.where(c >= r, parts[n], 0.0),)
        left += (tl.where(c >= r, 0.0, parts[n]),)
    for side in tl.static_range(2):
        part, group, block, column = _diagonals(C, C.cols_log - 2, left if side else right)
        row, far = down + tall.step * (block - 1 - 2 * group), along + wide.step * (column - 8 * side)
        tl.atomic_add(pointer + (row * (2 * wide.length - 1) + far), part, mask=part != 0, sem="relaxed")


@triton.jit
def _add_each(C: tl.constexpr, place, tile, share, pointer):
    """Pair by pair: no loop over the boxes of a tile is inside that over tiles, which Triton would then not stage."""
    runs, j = tile.visit.part.runs, tile.visit.j
    mine, theirs = place.rows.at[0] - (runs[0].length - 1), 0
    for a in tl.static_range(C.rank):
        run = runs[a]
        pace = 2 * run.length - 1
        if a > 0:
            mine = mine * pace + (place.rows.at[a] - (run.length - 1))
        theirs = theirs * pace + run.first + run.step * (run.column + (j[a] << run.log))
    tl.atomic_add(pointer + (theirs[None, :] - mine[:, None]), share, mask=share != 0, sem="relaxed")
