"""rows_bfloat16_128_16x64_several

Emitted by weft; 4 warps, 3 stages."""

import triton
import triton.language as tl

from weft.kernels.gpu.ops.bounds import tanh
from weft.kernels.triton.row_device import row_run, share


@triton.jit
def weft_decode_split_kv_d128_bf16(
    Q, K, V, Tables, splits, all_heads, m, members_at, groups, lanes, span, sums, Q_batch, Q_head, Q_row,
    K_batch, K_head, K_row, V_batch, V_head, V_row, Out_batch, Out_head, Out_row, scale, softcap, shift,
    beside, length, Out, Lse,
):
    # strides come in units of 16 bytes, 8 elements: rows are aligned
    Q_batch = Q_batch * 8; Q_head = Q_head * 8; Q_row = Q_row * 8
    K_batch = K_batch * 8; K_head = K_head * 8; K_row = K_row * 8
    V_batch = V_batch * 8; V_head = V_head * 8; V_row = V_row * 8
    Out_batch = Out_batch * 8; Out_head = Out_head * 8; Out_row = Out_row * 8
    # which rows: row_0, row_0 + lanes, ... of the query heads of one key/value head; and which share
    place, split = tl.program_id(0), tl.program_id(1)
    member = Tables + members_at + 6 * (place // groups)
    batch, kv_head = tl.load(member).to(tl.int64), tl.load(member + 1).to(tl.int64)
    first_head, heads = tl.load(member + 2), tl.load(member + 3)
    count_of_terms, terms = tl.load(member + 4), Tables + tl.load(member + 5)
    place = place % groups
    row_0 = place % lanes + place // lanes * (lanes * span)
    r = tl.arange(0, 16)
    row, head = row_0 + lanes * (r // heads), first_head + r % heads  # (rows,)
    valid = (r < span * heads) & (row < m)
    i_0, i = row_0 + shift, row + shift  # as terms count rows
    d_0 = 0 + tl.arange(0, 128)
    dv_0 = 0 + tl.arange(0, 128)
    q_at = Q + batch * Q_batch + head.to(tl.int64) * Q_head + row.to(tl.int64) * Q_row
    q_0 = tl.load(q_at[:, None] + d_0[None, :], mask=valid[:, None], other=0.0)  # 128
    acc_0 = tl.zeros((16, 128), tl.float32)
    largest = tl.full((16,), float("-inf"), tl.float32)  # of the scores, in units of log2
    total = tl.zeros((16,), tl.float32)
    k_at = K + batch * K_batch + kv_head * K_head
    v_at = V + batch * V_batch + kv_head * V_head
    c = tl.arange(0, 64)
    all_tiles = 0
    for part in range(count_of_terms):
        low, high, first, step, count = row_run(Tables, terms + part * 46, i, valid, i_0, (tl.zeros_like(i), length), 2, False)
        all_tiles += (count + 63) // 64
    begin, end = share(all_tiles, split, splits)
    before = 0  # tiles of the terms before
    for part in range(count_of_terms):
        low, high, first, step, count = row_run(Tables, terms + part * 46, i, valid, i_0, (tl.zeros_like(i), length), 2, False)
        tiles = (count + 63) // 64
        mine = tl.maximum(begin - before, 0)
        for j in range(tl.minimum(end - before, tiles) - mine):
            x = (mine + j) * 64 + c
            token = (first + step * tl.minimum(x, count - 1)).to(tl.int64)
            k_0 = tl.load((k_at + token * K_row)[:, None] + d_0[None, :])  # 128
            v_0 = tl.load((v_at + token * V_row)[:, None] + dv_0[None, :])  # 128
            s = tl.dot(q_0, tl.trans(k_0))
            s = s * (scale * 1.4426950408889634)
            s = tl.where((x[None, :] >= low[:, None]) & (x[None, :] < high[:, None]), s, float("-inf"))
            new = tl.maximum(largest, tl.max(s, 1))
            safe = tl.where(new == float("-inf"), 0.0, new)
            p, kept = tl.exp2(s - safe[:, None]), tl.exp2(largest - safe)
            total, largest = total * kept + tl.sum(p, 1), new
            p = p.to(v_0.dtype)
            acc_0 = tl.dot(p, v_0, acc_0 * kept[:, None])
        before += tiles
    number = (batch * all_heads + head) * m + row  # (rows,) among all rows
    inverse = tl.where(total == 0, 0.0, 1.0 / total)  # NaN stays NaN
    acc_0 = acc_0 * inverse[:, None]
    lse = tl.where(total == 0, float("-inf"), (largest + tl.log2(total)) * 0.6931471805599453)
    tl.store(Lse + number, lse, mask=valid)
    out_at = Out + batch * Out_batch + head.to(tl.int64) * Out_head + row.to(tl.int64) * Out_row
    tl.store(out_at[:, None] + dv_0[None, :], acc_0.to(Out.dtype.element_ty), mask=valid[:, None])


kernel = weft_decode_split_kv_d128_bf16
