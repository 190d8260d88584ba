"""forward_bfloat16_96_blocks_64x64

Emitted by weft; 4 warps, 3 stages."""

import triton
import triton.language as tl

from weft.kernels.gpu.ops.bounds import (
    in_three, is_out, lines, lower_table, positions, stairs, tanh, upper_table,
)


@triton.jit
def weft_fwd_tile_blocks_d96_bf16(
    Q, K, V, Tables, record, parts, parts_at, items_at, heads_at, first_item, all_heads, my_length,
    their_length, shift, Q_batch, Q_head, Q_row, K_batch, K_head, K_row, V_batch, V_head, V_row,
    Out_batch, Out_head, Out_row, scale, softcap, Out, Lse,
):
    # strides count in 16 bytes, 8 elements: rows are aligned
    # which tile of which head: head by head, or where some tiles far outlast the rest, these first
    item = first_item + tl.program_id(1)
    member = Tables + heads_at + 10 * (tl.program_id(0) + tl.program_id(2) * tl.num_programs(0))
    batch = tl.load(member).to(tl.int64)
    kv_head = tl.load(member + 1).to(tl.int64)
    head = tl.load(member + 2)
    mine = Tables + items_at + item * record
    # my rows: coordinates i_a on every axis, and tokens; where a tile ends early its last row, again and again
    r = tl.arange(0, 64)
    first_r = tl.load(mine) * 64
    token_r = first_r + r
    token_r = tl.minimum(token_r, my_length - 1)  # (rows,)
    near_r = token_r - first_r
    d_0 = 0 + tl.arange(0, 64)
    d_1 = 64 + tl.arange(0, 32)
    dv_0 = 0 + tl.arange(0, 64)
    dv_1 = 64 + tl.arange(0, 32)
    q_rows = Q + (batch * Q_batch + head.to(tl.int64) * Q_head) * 8
    q_rows_in = token_r.to(tl.int64) * Q_row * 8
    q_0 = tl.load(q_rows + (q_rows_in[:, None] + d_0[None, :]))  # 64
    q_1 = tl.load(q_rows + (q_rows_in[:, None] + d_1[None, :]))  # 32
    scale2 = scale * 1.4426950408889634
    acc_0 = tl.zeros((64, 64), tl.float32)
    acc_1 = tl.zeros((64, 32), tl.float32)
    largest = tl.full((64,), float("-inf"), tl.float32)
    total = tl.zeros((64,), tl.float32)
    k_at = K + (batch * K_batch + kv_head * K_head) * 8
    v_at = V + (batch * V_batch + kv_head * V_head) * 8
    columns, places, bits = Tables + tl.load(Tables), Tables + tl.load(Tables + 1), Tables + tl.load(Tables + 2)
    begin, end = tl.load(Tables + 3), tl.load(Tables + 4)  # of seen columns
    c = tl.arange(0, 64)
    token_c = c
    k_off = (token_c * (K_row * 8))[:, None]
    v_off = (token_c * (V_row * 8))[:, None]
    for block in range(tl.load(mine + 1), tl.load(mine + 2)):
        at = tl.load(columns + block) * 64
        there = c < end - at
        seen = there & (c >= begin - at)
        k_box = k_at + at.to(tl.int64) * (K_row.to(tl.int64) * 8)
        k_inside = k_off
        k_0 = tl.load(k_box + (k_inside + d_0[None, :]), mask=seen[:, None], other=0.0)  # 64
        k_1 = tl.load(k_box + (k_inside + d_1[None, :]), mask=seen[:, None], other=0.0)  # 32
        s = tl.dot(q_1, tl.trans(k_1), tl.dot(q_0, tl.trans(k_0)))
        place = tl.load(places + block)
        if place >= 0:
            word_0 = tl.load(bits + place * 128 + 2 * near_r)
            word_1 = tl.load(bits + place * 128 + 2 * near_r + 1)
            word = tl.where((c < 32)[None, :], word_0[:, None], word_1[:, None])
            s = tl.where(((word >> (c & 31)[None, :]) & 1) != 0, s, float("-inf"))
        s = tl.where(there[None, :], s, float("-inf"))
        new = tl.maximum(largest, tl.max(s, 1) * scale2)
        safe = tl.where(new == float("-inf"), 0.0, new)  # of rows that have seen no key yet
        p = tl.exp2(s * scale2 - safe[:, None])  # (rows, cols)
        kept = tl.exp2(largest - safe)
        total = total * kept + tl.sum(p, 1)
        largest = new
        v_box = v_at + at.to(tl.int64) * (V_row.to(tl.int64) * 8)
        v_inside = v_off
        v_0 = tl.load(v_box + (v_inside + dv_0[None, :]), mask=seen[:, None], other=0.0)  # 64
        v_1 = tl.load(v_box + (v_inside + dv_1[None, :]), mask=seen[:, None], other=0.0)  # 32
        acc_0 = acc_0 * kept[:, None]
        acc_1 = acc_1 * kept[:, None]
        p = p.to(v_0.dtype)
        acc_0 = tl.dot(p, v_0, acc_0)
        acc_1 = tl.dot(p, v_1, acc_1)
    inverse = tl.where(total == 0, 0.0, 1.0 / total)  # NaN stays NaN
    acc_0 = acc_0 * inverse[:, None]
    acc_1 = acc_1 * inverse[:, None]
    lse = tl.where(total == 0, float("-inf"), (largest + tl.log2(total)) * 0.6931471805599453)
    lse_at = Lse + (batch * all_heads + head) * my_length + token_r
    out_rows = Out + (batch * Out_batch + head.to(tl.int64) * Out_head) * 8
    out_rows_in = token_r.to(tl.int64) * Out_row * 8
    tl.store(lse_at, lse)
    acc_0 = acc_0.to(Out.dtype.element_ty)
    tl.store(out_rows + (out_rows_in[:, None] + dv_0[None, :]), acc_0)
    acc_1 = acc_1.to(Out.dtype.element_ty)
    tl.store(out_rows + (out_rows_in[:, None] + dv_1[None, :]), acc_1)


kernel = weft_fwd_tile_blocks_d96_bf16
