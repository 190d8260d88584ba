# ruff: noqa: PLR0913, SIM113, SIM102 - kernels take as many arguments as they need, and Gluon is not all of Python
"""The forward by warp groups that specialise, on Hopper: one warp loads, four groups compute. Functions of Gluon,
inlined into an emitted kernel (docs/decisions/0010-warp-groups-that-specialise.md).

As `weft.kernels.triton.groups`, with queries that stay: each of WIDE groups has 64 of a block. One or two terms, whose
tiles follow each other; one warp asks for them by tensor descriptors of (batch row, head, place, lane, channel), where
tokens are step * place + lane (`weft.planning.reach`). It means all that `tile.fwd` does without a maximum; rows
whose sums leave the range are marked, and walked again when all blocks are done, so that the code for it is there once,
and nowhere between blocks.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
)

from weft.kernels.gpu import constants
from weft.kernels.gpu.compile.dedup import COPIES, like_the_group_before, which_group
from weft.kernels.triton.groups import (
    LOG2E,
    TILE,
    UNIT,
    axis_of,
    barriers,
    block_at,
    head_of,
    in_parts,
    live,
    places_of,
    skip,
    turn,
)
from weft.kernels.triton.queries_again import LN2, again, with_sink
from weft.kernels.triton.query_blocks import (
    TERM,
    bounds_of,
    keys_of,
    matrix,
    place_of,
    room_of_boxes,
    run_of,
    share_of,
    tiles_of,
)
from weft.kernels.triton.short_queries import add_tile, heard, scores_of, short_weights
from weft.kernels.triton.told import axes_of, boxes_told, numbers_of, room, tell_bounds, tell_numbers

LEAST, MOST = gl.constexpr(constants.LEAST), gl.constexpr(constants.MOST)
# Registers of a thread that computes and of the warp that loads; the first group has what the others leave of 5 x 96.
COMPUTES, LOADS = gl.constexpr(112), gl.constexpr(24)
FIRST = gl.constexpr(3 * 64)  # keys of a short run that the first group sees


# ---- loading ---------------------------------------------------------------------------------------------------------
@gluon.jit
def load_run(i, run, boxes, heads, rings, bars, STAGES: gl.constexpr):
    """Ask for the tiles of one term. run: (keys, place and lane of the first)."""
    count, place, lane = run
    k_box, v_box = boxes
    k, v = rings
    full, empty = bars
    for j in range(0, tiles_of(count)):
        at = i & (STAGES - 1)
        mbarrier.wait(empty.index(at), turn(i, STAGES) ^ 1)
        mbarrier.expect(full.index(at), 2 * k_box.block_type.nbytes)
        where = [heads[0], heads[1], place + j * TILE, lane, 0]
        tma.async_copy_global_to_shared(k_box, where, full.index(at), k.index(at))
        tma.async_copy_global_to_shared(v_box, where, full.index(at), v.index(at))
        i += 1
    return i


@gluon.jit
def ask_queries(c, t, block, asked, WIDE: gl.constexpr):
    """Ask for group c's queries of block t. block: batch row, head, place and lane of its first; asked: their
    descriptor, memory and barriers.
    """
    q_box, rows, q_full, q_empty = asked
    at = 2 * c + (t & 1)
    mbarrier.wait(q_empty.index(at), ((t >> 1) & 1) ^ 1)
    box = [block[0], block[1], block[2] + c * 64, block[3], 0]
    tma.async_copy_global_to_shared(q_box, box, q_full.index(at), rows.index(at))


@gluon.jit
def boxes_of(tables, where, TERMS: gl.constexpr):
    """(batch row, head, place and lane of queries), (batch row, head of keys), and of both runs, see `load_run`."""
    member, mine = places_of(tables, where)
    batch, kv_head, head = gl.load(member), gl.load(member + 1), gl.load(member + 2)
    place, lane = place_of(mine, 0, TERMS)
    return (batch, head, place, lane), (batch, kv_head), run_of(mine, 0, TERMS), run_of(mine, TERMS - 1, TERMS)


@gluon.jit
def load_blocks(asked, WIDE: gl.constexpr, STAGES: gl.constexpr, TERMS: gl.constexpr, SHORT: gl.constexpr):
    """Queries of each group, two blocks ahead at most; keys and values STAGES tiles ahead. What the first group needs
    comes first, so that it begins while others wait. Of short runs, groups are told of a block before it is theirs.
    """
    boxes, rows, rings, bars, tables, rooms = asked
    q_box, k_box, v_box, k_far, v_far = boxes
    q_full, q_empty, full, empty = bars
    i = 0
    t = 0
    where = block_at(gl.program_id(0), tables)
    if SHORT:
        ahead = numbers_of(tables, where, WIDE, TERMS)
        axes = rooms[3]
        axes.index(0).store(axes_of(tables, TERMS))
    for number in range(gl.program_id(0), tables[6], gl.num_programs(0)):
        if SHORT:
            tell_numbers(rooms, t, ahead)
            block, heads, near, far = boxes_told(rooms[0], TERMS)
        else:
            block, heads, near, far = boxes_of(tables, where, TERMS)
        where = block_at(number + gl.num_programs(0), tables)
        for c in gl.static_range(WIDE):
            ask_queries(c, t, block, (q_box, rows, q_full, q_empty), WIDE)
            if c == 0:
                run = (gl.minimum(near[0], FIRST), near[1], near[2])
                i = load_run(i, run, (k_box, v_box), heads, rings, (full, empty), STAGES)
        if SHORT:
            tell_bounds(rooms, axes, WIDE, TERMS)
            ahead = numbers_of(tables, where, WIDE, TERMS)
        for c in gl.static_range(WIDE):
            mbarrier.expect(q_full.index(2 * c + (t & 1)), q_box.block_type.nbytes)
        run = (near[0] - gl.minimum(near[0], FIRST), near[1] + FIRST, near[2])
        i = load_run(i, run, (k_box, v_box), heads, rings, (full, empty), STAGES)
        if TERMS == 2:
            i = load_run(i, far, (k_far, v_far), heads, rings, (full, empty), STAGES)
        t += 1


# ---- computing -------------------------------------------------------------------------------------------------------
@gluon.jit
def fast_log2(x):
    """NVIDIA's own instruction, right to 2^-22 where x is normal, as sums within their range are."""
    return gl.inline_asm_elementwise("lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def fast_inverse(x):
    """As `fast_log2`."""
    return gl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def written_before(x):
    """x, once what the bulk engine was asked to write is written: rows that go again are stored by others after it."""
    return gl.inline_asm_elementwise(
        "cp.async.bulk.wait_group 0; mov.b32 $0, $1;", "=r,r", [x], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def block_of(C, here, mine, pace, r, WIDE: gl.constexpr, TERMS: gl.constexpr):
    """Of a group's queries in a block: (which tiles of each term are its own, bounds of rows and where they cut). here:
    the parts' numbers, read again and again, since what is held for all blocks is spilled; mine: the block's.

    span: tiles of the first term, the first of either, all of its own, those of others between the terms and after all.
    """
    start, height = gl.load(mine), gl.load(mine + 1)
    first, count = keys_of(mine, 0)
    begin, end, below, beyond = share_of(mine, C, 0, WIDE, TERMS)
    low, high = bounds_of(axis_of(here), start, r + C * 64, pace, height, first, count)
    n = tiles_of(count)
    span = (end - begin, begin, begin, end - begin, 0, n - end)
    bounds = (low, high, below, beyond, low, high, below, beyond)
    if TERMS == 2:
        far_first, far_count = keys_of(mine, 1)
        far_begin, far_end, far_below, far_beyond = share_of(mine, C, 1, WIDE, TERMS)
        axis = axis_of(here + TERM)
        far_low, far_high = bounds_of(axis, start, r + C * 64, pace, height, far_first, far_count)
        m = tiles_of(far_count)
        both = far_end > far_begin
        between = gl.where(both, n - end + far_begin, 0)
        after = gl.where(both, m - far_end, n - end + m)
        span = (end - begin, begin, far_begin, end - begin + far_end - far_begin, between, after)
        bounds = (low, high, below, beyond, far_low, far_high, far_below, far_beyond)
    return span, bounds


@gluon.jit
def tile_of(s, span, bounds, TERMS: gl.constexpr):
    """(which tile of its term's run a group's tile s is, bounds there and where they cut)"""
    low, high, below, beyond, far_low, far_high, far_below, far_beyond = bounds
    j = s + span[1]
    if TERMS == 2:
        far = s >= span[0]
        j = gl.where(far, s - span[0] + span[2], j)
        low, high = gl.where(far, far_low, low), gl.where(far, far_high, high)
        below, beyond = gl.where(far, far_below, below), gl.where(far, far_beyond, beyond)
    return j, (low, high, below, beyond)


@gluon.jit
def walk(i, mine, rings, of_scores, STAGES: gl.constexpr, TERMS: gl.constexpr):
    """(tiles so far, sums, parts of sums of weights) over a group's tiles. mine: its queries, and see `block_of`."""
    q, span, bounds = mine
    full, empty = rings[2], rings[3]
    acc = of_scores[2]
    total = in_parts(acc)
    for s in range(0, span[3]):
        if TERMS == 2:
            if s == span[0]:
                i = skip(span[4], i, full, empty, STAGES)
        i = live(i)  # else four multiplications more a tile, and long runs took 1.12 (benchmarks/notes/triton.md)
        x = scores_of(i, q, rings, of_scores[2], STAGES)
        j, here = tile_of(s, span, bounds, TERMS)  # after the wait: before it, ptxas makes other code
        acc, total = add_tile(i, j, x, (acc, total), here, rings, of_scores, STAGES)
        i += 1
    return i, acc, total


@gluon.jit
def weights_of(i, block, rings, of_scores, WIDE: gl.constexpr, STAGES: gl.constexpr, TERMS: gl.constexpr):
    """(tiles so far, sums, parts of sums of weights, keys that each row sees, how many tiles of others come after) over
    those tiles of a block that are a group's own. block: (group, the parts' numbers, the block's, step and numbers of
    rows, memory of queries, which of it, and when they are there); of_scores: columns of a tile, what makes logarithms
    of weights of scores, and a tile of zeros.
    """
    C, here, mine, pace, r, rows, place, ready = block
    full, empty = rings[2], rings[3]
    span, bounds = block_of(C, here, mine, pace, r, WIDE, TERMS)
    mbarrier.wait(ready[0], ready[1])
    i = skip(span[1], i, full, empty, STAGES)
    i, acc, total = walk(i, (matrix(rows.index(place)), span, bounds), rings, of_scores, STAGES, TERMS)
    return i, acc, total, seen_keys(bounds, TERMS), span[5]


@gluon.jit
def seen_keys(bounds, TERMS: gl.constexpr):
    """How many keys each row sees."""
    keys = gl.maximum(bounds[1] - bounds[0], 0)
    if TERMS == 2:
        keys += gl.maximum(bounds[5] - bounds[4], 0)
    return keys


@gluon.jit
def finished(acc, whole, keys, valid, sink, SINKS: gl.constexpr):
    """(out, lse, which rows go again) of sums, sums of weights, which are NaN where a sum is no number, how many keys
    rows see and the head's sink; who goes again has NaN for lse.
    """
    tame = (whole <= MOST) & (whole >= LEAST)
    wild = (keys > 0) & (tame == 0) & valid
    # a row's only weight, rounded as its value met it: divided by that, the value is exact
    weight = gl.where(keys == 1, whole.to(gl.bfloat16).to(gl.float32), whole)
    if SINKS:
        less, more, above = with_sink(keys == 0, sink * LOG2E, gl.zeros_like(whole))
        inverse = gl.where(keys == 0, 0.0, less / (weight * less + more))
        lse = gl.where(keys == 0, sink, (above + fast_log2(whole * less + more)) * LN2)
    else:
        inverse = gl.where(keys == 0, 0.0, fast_inverse(weight))
        lse = gl.where(keys == 0, float("-inf"), fast_log2(whole) * LN2)
    return (acc * gl.expand_dims(inverse, 1)).to(gl.bfloat16), gl.where(wild, float("nan"), lse), wild


@gluon.jit
def keep_some(result, tensor, place, C):
    """Write those of one group's rows that exist; place: (batch row, head, first row, rows, step)."""
    batch, head, first, height, pace = place
    pace = live(pace)  # so that no address is made before all blocks, and held
    lies: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    r = gl.arange(0, 64, layout=gl.SliceLayout(1, lies)) + C * 64
    d = gl.expand_dims(gl.arange(0, 64, layout=gl.SliceLayout(0, lies)), 0)
    at = head_of(tensor, batch, head, first) + (gl.expand_dims(r * pace * (tensor[3] * UNIT), 1) + d)
    gl.store(at, result.load(lies), mask=gl.expand_dims(r < height, 1))


@gluon.jit
def leave(result, written, rows, place, C):
    """Write one group's rows: whole tiles by a descriptor, where `written` ends with one. rows: as of `keep_some`."""
    if len(written) == 4:
        if rows[3] >= C * 64 + 64:
            fence_async_shared()
            where = [rows[0], rows[1], place[0] + C * 64, place[1], 0]
            tma.async_copy_shared_to_global(written[3], where, result)
        else:
            keep_some(matrix(result), written[0], rows, C)
    else:
        keep_some(matrix(result), written[0], rows, C)


@gluon.jit
def attend(
    C, told, WIDE: gl.constexpr, STAGES: gl.constexpr, TERMS: gl.constexpr, SINKS: gl.constexpr, SHORT: gl.constexpr
):  # fmt: skip
    """out and lse of one warp group's queries, block after block."""
    written, rows, rings, flags, bars, tables, numbers_of, rooms = told
    Lse, result = written[1], written[2].index(C)
    all_heads, length, scale, Sinks = numbers_of
    lies: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16])
    of_rows: gl.constexpr = gl.SliceLayout(1, lies)
    r = gl.arange(0, 64, layout=of_rows)
    columns = gl.arange(0, 64, layout=gl.SliceLayout(0, lies))
    zero = gl.zeros([64, 64], gl.float32, lies)
    q_full, q_empty, full, empty = bars
    Tables, parts_at = tables[0], tables[2]
    here = Tables + parts_at
    origin, pace = gl.load(Tables), gl.load(Tables + 3)
    of_scores = (columns, scale * LOG2E, zero)
    ring = (rings[0], rings[1], full, empty)
    i, t = 0, 0
    marked = gl.zeros([64], gl.int32, of_rows)
    for number in range(gl.program_id(0), tables[6], gl.num_programs(0)):
        place = 2 * C + (t & 1)
        if SHORT:
            mbarrier.wait(q_full.index(place), (t >> 1) & 1)
            fold, near, far, told_of_it = heard(rooms, C, WIDE, TERMS, lies)
            batch, _, head, start, height, at, lane = told_of_it
            block = (fold, near, far, told_of_it, rows, place)
            found = short_weights(i, block, ring, of_scores, STAGES, TERMS)
        else:
            member, mine = places_of(tables, block_at(number, tables))
            block = (C, here, mine, pace, r, rows, place, (q_full.index(place), (t >> 1) & 1))
            found = weights_of(i, block, ring, of_scores, WIDE, STAGES, TERMS)
        i, acc, total, keys, after = found
        mbarrier.arrive(q_empty.index(place), count=1)
        i = skip(after, i, full, empty, STAGES)
        if not SHORT:
            batch, head = gl.load(member), gl.load(member + 2)
            start, height = gl.load(mine), gl.load(mine + 1)
        valid = r + C * 64 < height
        sink = gl.load(Sinks + head) if SINKS else 0.0
        whole = gl.convert_layout(gl.sum(total + in_parts(acc * 0.0), 1), of_rows)
        out, lse, wild = finished(acc, whole, keys, valid, sink, SINKS)
        marked = marked | wild.to(gl.int32)
        tma.store_wait(0)  # for the result of the block before
        matrix(result).store(out)
        if not SHORT:
            at, lane = place_of(mine, 0, TERMS)
        leave(result, written, (batch, head, origin + start, height, pace), (at, lane), C)
        # after the fence, which waits for what was stored before it
        row = origin + start + gl.minimum(r + C * 64, height - 1) * pace
        gl.store(Lse + (batch.to(gl.int64) * all_heads + head) * length + row, lse, mask=valid)
        t += 1
    flags.index(C).store(gl.expand_dims(written_before(marked), 1))


@gluon.jit
def any_group(told, WIDE: gl.constexpr, STAGES: gl.constexpr, TERMS: gl.constexpr, SINKS: gl.constexpr):
    """`attend`, of whichever group."""
    attend(which_group(), told, WIDE, STAGES, TERMS, SINKS, True)


@gluon.jit
def like_before(told, WIDE: gl.constexpr, STAGES: gl.constexpr, TERMS: gl.constexpr, SINKS: gl.constexpr):
    """`any_group`, of the groups after the first one."""
    if COPIES:
        any_group(told, WIDE, STAGES, TERMS, SINKS)
    else:
        like_the_group_before()


@gluon.jit
def made(
    read, written, tables, numbers_of, WIDE: gl.constexpr, STAGES: gl.constexpr, TERMS: gl.constexpr,
    SHORT: gl.constexpr,
):  # fmt: skip
    """(what groups are told, what who loads is, memory of marks and of one tile each): shared memory and barriers."""
    boxes = read[2]
    rows, rings = room_of_boxes(boxes[0], 2 * WIDE), (room_of_boxes(boxes[1], STAGES), room_of_boxes(boxes[2], STAGES))
    results = room_of_boxes(boxes[0], WIDE)
    lies: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    if SHORT:
        rooms = room(WIDE, TERMS)
        flags = rooms[1]._reinterpret(gl.int32, [WIDE, 64, 1], lies)  # bounds of its own that a group needs no more
    else:
        flags = gl.allocate_shared_memory(gl.int32, [WIDE, 64, 1], lies)
        rooms = (flags, flags, flags, flags)
    bars = barriers(2 * WIDE, 1), barriers(2 * WIDE, 1), barriers(STAGES, 1), barriers(STAGES, WIDE)
    kept = (written[0], written[1], results) + written[2:]  # noqa: RUF005 - Gluon unpacks no tuple in another
    told = (kept, rows, rings, flags, bars, tables, numbers_of, rooms)
    tiles = (matrix(rows.index(0)), matrix(rings[0].index(0)), matrix(rings[1].index(0)))
    return told, (boxes, rows, rings, bars, tables, rooms), flags, tiles


@gluon.jit
def again_if_marked(read, told, flags, rooms, WIDE: gl.constexpr, TERMS: gl.constexpr, SINKS: gl.constexpr):
    """Rows of which a group said that their sums left the range."""
    written, _, _, _, _, tables, numbers_of, _ = told
    flat: gl.constexpr = gl.BlockedLayout([1, 1], [32, 1], [4, 1], [1, 0])
    marked = 0
    for c in gl.static_range(WIDE):
        marked = gl.maximum(marked, gl.max(gl.max(flags.index(c).load(flat), 1), 0))
    if marked != 0:
        again(read, (written[0], written[1]), rooms, tables, numbers_of, WIDE, TERMS, SINKS)


@gluon.jit
def attention(
    read, written, tables, numbers_of, WIDE: gl.constexpr, STAGES: gl.constexpr, TERMS: gl.constexpr,
    SINKS: gl.constexpr,
):  # fmt: skip
    """out and lse. read: Q; K and V; descriptors of Q, K, V, and of K and V as the second term walks them. written: the
    tensor Out, the pointer Lse and a descriptor of Out. numbers_of: (heads of queries, queries, scale, the pointer
    Sinks).
    """
    told, asked, flags, rooms = made(read, written, tables, numbers_of, WIDE, STAGES, TERMS, False)
    gl.static_assert(WIDE == 4)
    gl.warp_specialize([
        (attend, (0, told, WIDE, STAGES, TERMS, SINKS, False)), (attend, (1, told, WIDE, STAGES, TERMS, SINKS, False)),
        (attend, (2, told, WIDE, STAGES, TERMS, SINKS, False)), (attend, (3, told, WIDE, STAGES, TERMS, SINKS, False)),
        (load_blocks, (asked, WIDE, STAGES, TERMS, False)),
    ], [4, 4, 4, 1], [COMPUTES, COMPUTES, COMPUTES, LOADS])  # fmt: skip
    again_if_marked(read, told, flags, rooms, WIDE, TERMS, SINKS)


@gluon.jit
def short_attention(
    read, written, tables, numbers_of, WIDE: gl.constexpr, STAGES: gl.constexpr, TERMS: gl.constexpr,
    SINKS: gl.constexpr,
):  # fmt: skip
    """As `attention`, of short runs, by groups that are not told which they are and so may share their code; the
    kernel's own four warps load (docs/decisions/0010).
    """
    told, asked, flags, rooms = made(read, written, tables, numbers_of, WIDE, STAGES, TERMS, True)
    gl.static_assert(WIDE == 4)
    gl.warp_specialize([
        (load_blocks, (asked, WIDE, STAGES, TERMS, True)),
        (any_group, (told, WIDE, STAGES, TERMS, SINKS)), (like_before, (told, WIDE, STAGES, TERMS, SINKS)),
        (like_before, (told, WIDE, STAGES, TERMS, SINKS)), (like_before, (told, WIDE, STAGES, TERMS, SINKS)),
    ], [4, 4, 4, 4], [COMPUTES, COMPUTES, COMPUTES, COMPUTES])  # fmt: skip
    again_if_marked(read, told, flags, rooms, WIDE, TERMS, SINKS)
