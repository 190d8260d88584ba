# ruff: noqa: PLR0913, SIM113, SIM102 - kernels take as many arguments as they need, and Gluon is not all of Python
"""The forward: warp groups that have queries. It means all that weft's own short form does: rows whose sums leave a
range are walked again, with the largest score taken off; a row of one key has its value, one of none 0.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from specialised.pieces import after, begin, cut, own, parts, produce, tiles
from weft.kernels.triton.groups import barriers, live, skip, turn


@gluon.jit
def pack(p):
    """Weights as two of bfloat16 in one integer: carried so from one tile to the next they stay in their registers."""
    a, b = gl.split(gl.reshape(p, [64, 32, 2]))
    return gl.inline_asm_elementwise(
        "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,r,r", [a, b], dtype=gl.int32, is_pure=True, pack=1
    )


@gluon.jit
def unpack(x, factor: gl.constexpr):
    a = x.to(gl.int16).to(gl.bfloat16, bitcast=True)
    b = (x >> 16).to(gl.int16).to(gl.bfloat16, bitcast=True)
    return gl.convert_layout(gl.reshape(gl.join(a, b), [64, 64]), factor)


@gluon.jit
def weigh(s, span, x, bounds, columns, scale2, TERMS: gl.constexpr):
    """2^score of a group's tile s; span: see `walk`."""
    m_0, f_0, f_1 = span[0], span[1], span[2]
    j = gl.where(s >= m_0, s - m_0 + f_1, s + f_0)
    low_0, high_0, cut_0, low_1, high_1, cut_1 = bounds
    x = cut(x, j, (s >= m_0, low_0, high_0, cut_0, low_1, high_1, cut_1), columns, TERMS)
    return gl.exp2(x * scale2)


@gluon.jit
def walk(i, q, rings, bars, span, bounds, columns, zero, scale2, STAGES: gl.constexpr, TERMS: gl.constexpr):
    """(tiles so far, sums, parts of sums of weights) over a block's tiles. span: a group's tiles of the first term, the
    first of either, all of its own, those between its terms.
    """
    lies: gl.constexpr = zero.type.layout
    factor: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=lies, k_width=2)
    k, v = rings
    full, empty = bars
    acc = zero
    total = parts(zero)
    for s in range(0, span[3]):
        if TERMS == 2:
            if s == span[0]:
                i = skip(span[4], i, full, empty, STAGES)
        at = i & (STAGES - 1)
        mbarrier.wait(full.index(at), turn(i, STAGES))
        x = warpgroup_mma(q, k.index(at).reshape([64, 64]).permute((1, 0)), zero, use_acc=False, is_async=True)
        x = warpgroup_mma_wait(0, (x,))
        p = weigh(s, span, x, bounds, columns, scale2, TERMS)
        total += parts(p)
        weights = gl.convert_layout(p.to(gl.bfloat16), factor)
        y = warpgroup_mma(weights, v.index(at).reshape([64, 64]), acc, is_async=True)
        acc = warpgroup_mma_wait(0, (y,))
        mbarrier.arrive(empty.index(at), count=1)
        i += 1
    return i, acc, total


@gluon.jit
def walk_ahead(i, q, rings, bars, span, bounds, columns, zero, scale2, STAGES: gl.constexpr, TERMS: gl.constexpr):
    """The same, the values of a tile beside the exponentials of the next; there is one tile at least."""
    lies: gl.constexpr = zero.type.layout
    factor: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=lies, k_width=2)
    k, v = rings
    full, empty = bars
    acc = zero
    total = parts(zero)
    if TERMS == 2:
        if span[0] == 0:
            i = skip(span[4], i, full, empty, STAGES)
    last = i & (STAGES - 1)
    mbarrier.wait(full.index(last), turn(i, STAGES))
    x = warpgroup_mma(q, k.index(last).reshape([64, 64]).permute((1, 0)), zero, use_acc=False, is_async=True)
    x = warpgroup_mma_wait(0, (x,))
    p = weigh(0, span, x, bounds, columns, scale2, TERMS)
    total += parts(p)
    weights = pack(p)
    i += 1
    for s in range(1, span[3]):
        if TERMS == 2:
            if s == span[0]:
                i = skip(span[4], i, full, empty, STAGES)
        at = i & (STAGES - 1)
        mbarrier.wait(full.index(at), turn(i, STAGES))
        x = warpgroup_mma(q, k.index(at).reshape([64, 64]).permute((1, 0)), zero, use_acc=False, is_async=True)
        y = warpgroup_mma(unpack(weights, factor), v.index(last).reshape([64, 64]), acc, is_async=True)
        x = warpgroup_mma_wait(1, (x,))
        p = weigh(s, span, x, bounds, columns, scale2, TERMS)
        total += parts(p)
        acc = warpgroup_mma_wait(0, (y,))
        mbarrier.arrive(empty.index(last), count=1)
        weights = pack(p)
        last = at
        i += 1
    y = warpgroup_mma(unpack(weights, factor), v.index(last).reshape([64, 64]), acc, is_async=True)
    acc = warpgroup_mma_wait(0, (y,))
    mbarrier.arrive(empty.index(last), count=1)
    return i, acc, total


@gluon.jit
def walk_again(q, own_way, head, starts, span, bounds, columns, zero, scale2, TERMS: gl.constexpr):
    """(times asked, sums, sums of weights, largest score) of the same tiles, online, for rows whose weights left the
    range: one after the other through one buffer, which nobody else asks for. own_way: it, its barrier, how often that
    was waited for, and descriptors.
    """
    lies: gl.constexpr = zero.type.layout
    of_rows: gl.constexpr = gl.SliceLayout(1, lies)
    factor: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=lies, k_width=2)
    buffer, ready, asked, k_desc, v_desc, k_far, v_far = own_way
    low_0, high_0, cut_0, low_1, high_1, cut_1 = bounds
    tile = buffer.reshape([64, 64])
    acc = zero
    largest = gl.full([64], float("-inf"), gl.float32, of_rows)
    total = gl.zeros([64], gl.float32, of_rows)
    for s in range(0, span[3]):
        far = s >= span[0]
        j = gl.where(far, s - span[0] + span[2], s + span[1])
        row = gl.where(far, starts[1], starts[0]) + j * 64
        mbarrier.expect(ready, k_desc.block_type.nbytes)
        if TERMS == 1:
            tma.async_copy_global_to_shared(k_desc, [head, row, 0], ready, buffer)
        else:
            tma.async_copy_global_to_shared(k_desc, [head, row, 0], ready, buffer, pred=s < span[0])
            tma.async_copy_global_to_shared(k_far, [head, row, 0], ready, buffer, pred=s >= span[0])
        mbarrier.wait(ready, asked & 1)
        x = warpgroup_mma(q, tile.permute((1, 0)), zero, use_acc=False, is_async=True)
        x = warpgroup_mma_wait(0, (x,))
        x = cut(x, j, (far, low_0, high_0, cut_0, low_1, high_1, cut_1), columns, TERMS)
        mbarrier.expect(ready, k_desc.block_type.nbytes)
        if TERMS == 1:
            tma.async_copy_global_to_shared(v_desc, [head, row, 0], ready, buffer)
        else:
            tma.async_copy_global_to_shared(v_desc, [head, row, 0], ready, buffer, pred=s < span[0])
            tma.async_copy_global_to_shared(v_far, [head, row, 0], ready, buffer, pred=s >= span[0])
        new = gl.maximum(largest, gl.max(x, 1) * scale2)
        safe = gl.where(new == float("-inf"), 0.0, new)  # of rows that have seen no key yet
        p = gl.exp2(x * scale2 - gl.expand_dims(safe, 1))
        kept = gl.exp2(largest - safe)
        total = total * kept + gl.sum(p, 1)
        largest = new
        acc = acc * gl.expand_dims(kept, 1)
        mbarrier.wait(ready, (asked + 1) & 1)
        y = warpgroup_mma(gl.convert_layout(p.to(gl.bfloat16), factor), tile, acc, is_async=True)
        acc = warpgroup_mma_wait(0, (y,))
        asked += 2
    return asked, acc, total, largest


@gluon.jit
def attend(
    C: gl.constexpr, out_desc, told, WIDE: gl.constexpr, STAGES: gl.constexpr, TERMS: gl.constexpr, AHEAD: gl.constexpr
):
    """out and lse of one warp group's queries, block after block."""
    rows, results, rings, bars, descs, Lse, Table, Bounds, items, blocks, heads, length, scale = told
    D: gl.constexpr = 64
    lies: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16])
    of_rows: gl.constexpr = gl.SliceLayout(1, lies)
    r = gl.arange(0, 64, layout=of_rows)
    columns = gl.arange(0, 64, layout=gl.SliceLayout(0, lies))
    zero = gl.zeros([64, 64], gl.float32, lies)
    q_full, q_empty, full, empty, ready = bars
    k_desc, v_desc, k_far, v_far = descs
    result = results.index(C)
    scale2 = scale * 1.4426950408889634
    n = gl.num_programs(0)
    head, block = begin(blocks, heads)
    i = 0
    t = 0
    asked = 0
    mine = own(C, Table, Bounds, block, blocks, r, WIDE, TERMS)
    for _ in range(gl.program_id(0), items, n):
        place = 2 * C + (t & 1)
        first, n_0, n_1, f_0, l_0, f_1, l_1, cut_0, cut_1, low_0, high_0, low_1, high_1 = mine
        n_0, n_1, f_0, l_0, f_1, l_1 = live(n_0), live(n_1), live(f_0), live(l_0), live(f_1), live(l_1)
        record = Table + block * 32
        # the next block's, long before they are needed
        head_2, block = after(head, block, n, heads)
        mine = own(C, Table, Bounds, block, blocks, r, WIDE, TERMS)
        q = rows.index(place).reshape([64, D])
        mbarrier.wait(q_full.index(place), (t >> 1) & 1)
        i = skip(f_0, i, full, empty, STAGES)
        span = (l_0 - f_0, f_0, f_1, l_0 - f_0 + l_1 - f_1, n_0 - l_0 + f_1)
        bounds = (low_0, high_0, cut_0, low_1, high_1, cut_1)
        if AHEAD:
            i, acc, total = walk_ahead(i, q, rings, (full, empty), span, bounds, columns, zero, scale2, STAGES, TERMS)
        else:
            i, acc, total = walk(i, q, rings, (full, empty), span, bounds, columns, zero, scale2, STAGES, TERMS)
        i = skip(gl.where(l_1 > f_1, n_1 - l_1, n_0 - l_0 + n_1), i, full, empty, STAGES)
        whole = gl.convert_layout(gl.sum(total, 1), of_rows)
        keys = gl.maximum(high_0 - low_0, 0)
        if TERMS == 2:
            keys += gl.maximum(high_1 - low_1, 0)
        tame = (whole <= 1.329227995784916e36) & (whole >= 3.552713678800501e-15)
        tame = tame & (gl.sum(acc * 0.0, 1) == 0.0)  # nothing infinite, and all of it numbers
        wild = (keys > 0) & (tame == 0)
        # a row's only weight, rounded as its value met it: divided by that, the value is exact
        weight = gl.where(keys == 1, whole.to(gl.bfloat16).to(gl.float32), whole)
        inverse = gl.where(keys == 0, 0.0, 1.0 / weight)
        lse = gl.where(keys == 0, float("-inf"), gl.log2(whole) * 0.6931471805599453)
        out = (acc * gl.expand_dims(inverse, 1)).to(gl.bfloat16)
        tma.store_wait(0)  # for the result of the block before
        if gl.max(wild.to(gl.int32), 0) != 0:
            starts = (gl.load(record + 1), gl.load(record + 3))
            own_way = (result, ready.index(C), asked, k_desc, v_desc, k_far, v_far)
            asked, acc, whole, largest = walk_again(
                q, own_way, head, starts, span, bounds, columns, zero, scale2, TERMS
            )
            again = (acc * gl.expand_dims(1.0 / whole, 1)).to(gl.bfloat16)
            out = gl.where(gl.expand_dims(wild, 1), again, out)
            lse = gl.where(wild, (largest + gl.log2(whole)) * 0.6931471805599453, lse)
        mbarrier.arrive(q_empty.index(place), count=1)
        result.reshape([64, D]).store(out)
        fence_async_shared()
        tma.async_copy_shared_to_global(out_desc, [head, first, 0], result)
        gl.store(Lse + head * length + first + r, lse)
        head = head_2
        t += 1
    tma.store_wait(0)


@gluon.jit
def forward(
    q_desc, k_desc, v_desc, k_far, v_far, out_desc, Lse, Table, Bounds, items, blocks, heads, length, scale,
    WIDE: gl.constexpr, STAGES: gl.constexpr, TERMS: gl.constexpr, REGISTERS: gl.constexpr, AHEAD: gl.constexpr,
):  # fmt: skip
    """k_far, v_far: the keys of the second term, at their step. items: blocks of all heads; length: tokens."""
    q, results, k, v = tiles(q_desc, 2 * WIDE), tiles(q_desc, WIDE), tiles(k_desc, STAGES), tiles(v_desc, STAGES)
    q_full, q_empty = barriers(2 * WIDE, 1), barriers(2 * WIDE, 1)
    full, empty, ready = barriers(STAGES, 1), barriers(STAGES, WIDE), barriers(WIDE, 1)
    mine, walked = (q_full, q_empty, full, empty, ready), (k_desc, v_desc, k_far, v_far)
    told = (q, results, (k, v), mine, walked, Lse, Table, Bounds, items, blocks, heads, length, scale)
    descs = (q_desc, k_desc, v_desc, k_far, v_far, q_desc, q_desc)
    bars = (q_full, q_empty, q_full, q_empty, full, empty)
    asked = (descs, (q, q, q), (k, v), bars, Table, items, blocks, heads)
    if WIDE == 3:
        gl.warp_specialize([
            (attend, (0, out_desc, told, WIDE, STAGES, TERMS, AHEAD)),
            (attend, (1, out_desc, told, WIDE, STAGES, TERMS, AHEAD)),
            (attend, (2, out_desc, told, WIDE, STAGES, TERMS, AHEAD)),
            (produce, (asked, WIDE, STAGES, TERMS, False)),
        ], [4, 4, 1], [REGISTERS, REGISTERS, 24])  # fmt: skip
    else:
        gl.warp_specialize([
            (attend, (0, out_desc, told, WIDE, STAGES, TERMS, AHEAD)),
            (attend, (1, out_desc, told, WIDE, STAGES, TERMS, AHEAD)),
            (attend, (2, out_desc, told, WIDE, STAGES, TERMS, AHEAD)),
            (attend, (3, out_desc, told, WIDE, STAGES, TERMS, AHEAD)),
            (produce, (asked, WIDE, STAGES, TERMS, False)),
        ], [4, 4, 4, 1], [REGISTERS, REGISTERS, REGISTERS, 24])  # fmt: skip
