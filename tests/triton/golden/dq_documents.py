"""dq_bfloat16_128_1d_64x64_held_chained_apart_table

Emitted by weft; 4 warps, 3 stages."""

import triton
import triton.language as tl

from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from weft.kernels.gpu.ops.bounds import (
    in_three, is_out, lines, lower_table, positions, stairs, tanh, upper_table,
)


@triton.jit
def weft_bwd_dq_tile_table_line_d128_bf16(
    Q, K, V, Out, DOut, Lse, Tables, record, parts, parts_at, items_at, heads_at, first_item, all_heads,
    my_length, their_length, shift, Q_batch, Q_head, Q_row, K_batch, K_head, K_row, V_batch, V_head,
    V_row, Out_batch, Out_head, Out_row, DOut_batch, DOut_head, DOut_row, DQ_batch, DQ_head, DQ_row,
    scale, softcap, DQ, Stats,
):
    # strides count in 16 bytes, 8 elements: rows are aligned
    gdc_launch_dependents()  # that of dK and dV may begin where this one leaves room
    # which tile of which head: head by head, or where some tiles far outlast the rest, these first
    item = first_item + tl.program_id(1)
    member = Tables + heads_at + 10 * (tl.program_id(0) + tl.program_id(2) * tl.num_programs(0))
    batch = tl.load(member).to(tl.int64)
    kv_head = tl.load(member + 1).to(tl.int64)
    head = tl.load(member + 2)
    mine = Tables + items_at + item * record
    # my rows: coordinates i_a on every axis, and tokens; where a tile ends early its last row, again and again
    r = tl.arange(0, 64)
    valid = r >= 0
    rest = r
    r_0 = rest
    rows_0 = tl.load(mine + 1)
    valid &= r_0 < rows_0
    r_0 = tl.minimum(r_0, rows_0 - 1)
    start_0 = tl.load(mine + 0)
    r_0 = r_0 * tl.load(Tables + 3)
    i_0 = start_0 + r_0
    first_r = tl.load(Tables) + start_0
    near_r = r_0
    token_r = first_r + near_r  # (rows,)
    d_0 = 0 + tl.arange(0, 128)
    dv_0 = 0 + tl.arange(0, 128)
    q_rows = Q + (batch * Q_batch + head.to(tl.int64) * Q_head + first_r.to(tl.int64) * Q_row) * 8
    q_rows_in = near_r * (Q_row * 8)
    o_rows = DOut + (batch * DOut_batch + head.to(tl.int64) * DOut_head + first_r.to(tl.int64) * DOut_row) * 8
    o_rows_in = near_r * (DOut_row * 8)
    q_0 = tl.load(q_rows + (q_rows_in[:, None] + d_0[None, :]))  # 128
    row = (batch * all_heads + head) * my_length + token_r
    lse = tl.load(Lse + row)
    do_0 = tl.load(o_rows + (o_rows_in[:, None] + dv_0[None, :]))  # 128
    out_rows = Out + (batch * Out_batch + head.to(tl.int64) * Out_head + first_r.to(tl.int64) * Out_row) * 8
    out_rows_in = near_r * (Out_row * 8)
    o_0 = tl.load(out_rows + (out_rows_in[:, None] + dv_0[None, :]))  # 128
    scale2 = scale * 1.4426950408889634
    here = Tables + parts_at
    run = mine + 2
    c = tl.arange(0, 64)
    first_0 = tl.load(run + 0)
    count_0 = tl.load(run + 1)
    step_0 = tl.load(here + 4)
    length_0 = tl.load(here + 6)
    left_0 = tl.load(run + 2)
    full_0 = left_0 + tl.load(run + 3)
    boxes_0 = (count_0 + 63) // 64
    c_0 = c
    low = lower_table(Tables, here + 10, i_0, item)
    high = upper_table(Tables, here + 12, i_0, item, length_0)
    reciprocal, digits = tl.load(here + 8), tl.load(here + 9)  # of the step
    low_0 = positions(low, first_0, step_0, reciprocal, digits)  # (rows,)
    high_0 = positions(high, first_0, step_0, reciprocal, digits)
    base = tl.load(here) + first_0  # the first token
    token_c = c_0 * step_0  # (cols,) tokens of a box
    q_0 = (tl.dot(tl.zeros((64, 16), q_0.dtype), tl.zeros((16, 128), q_0.dtype)) + q_0).to(q_0.dtype)
    delta = tl.sum(o_0.to(tl.float32) * do_0.to(tl.float32), 1)  # (rows,)
    lse = tl.where(lse == float("-inf"), 0.0, lse)  # a row that sees no key
    # as sums of three: what dK and dV take from their products (a multiple of it)
    of_lse, of_delta = in_three(-lse / scale), in_three(-delta)
    stat = tl.arange(0, 16)[None, :]
    stats = tl.zeros((64, 16), tl.float32)
    stats = tl.where(stat == 0, of_lse[0][:, None], stats)
    stats = tl.where(stat == 8, of_delta[0][:, None], stats)
    stats = tl.where(stat == 1, of_lse[1][:, None], stats)
    stats = tl.where(stat == 9, of_delta[1][:, None], stats)
    stats = tl.where(stat == 2, of_lse[2][:, None], stats)
    stats = tl.where(stat == 10, of_delta[2][:, None], stats)
    tl.store(Stats + row[:, None] * 16 + stat, stats.to(tl.bfloat16), mask=valid[:, None])
    lse2 = lse * 1.4426950408889634
    dq_0 = tl.zeros((64, 128), tl.float32)
    k_at = K + (batch * K_batch + kv_head * K_head) * 8
    v_at = V + (batch * V_batch + kv_head * V_head) * 8
    pace_0 = step_0 * 64
    k_off = (token_c * (K_row * 8))[:, None]
    v_off = (token_c * (V_row * 8))[:, None]
    for j in range(boxes_0 - full_0 + left_0):  # tiles with an edge
        j_0 = tl.where(j < left_0, j, j + full_0 - left_0)
        near = tl.minimum(c, count_0 - 1 - j_0 * 64)
        at = base + j_0 * pace_0
        k_box = k_at + at.to(tl.int64) * K_row * 8
        k_inside = (near * (step_0 * (K_row * 8)))[:, None]
        k_0 = tl.load(k_box + (k_inside + d_0[None, :]))  # 128
        v_box = v_at + at.to(tl.int64) * V_row * 8
        v_inside = (near * (step_0 * (V_row * 8)))[:, None]
        v_0 = tl.load(v_box + (v_inside + dv_0[None, :]))  # 128
        s = tl.dot(q_0, tl.trans(k_0))
        p = tl.exp2(s * scale2 - lse2[:, None])  # (rows, cols)
        from_0, to_0 = low_0 - j_0 * 64, high_0 - j_0 * 64
        live = (c[None, :] >= from_0[:, None]) & (c[None, :] < to_0[:, None])
        p = tl.where(live, p, 0.0)
        ds = p * (tl.dot(do_0, tl.trans(v_0)) - delta[:, None])
        ds = ds.to(k_0.dtype)
        dq_0 = tl.dot(ds, k_0, dq_0)
    for j_0 in range(left_0, full_0):  # full tiles
        at = base + j_0 * pace_0
        k_box = k_at + at.to(tl.int64) * K_row * 8
        k_inside = k_off
        k_0 = tl.load(k_box + (k_inside + d_0[None, :]))  # 128
        v_box = v_at + at.to(tl.int64) * V_row * 8
        v_inside = v_off
        v_0 = tl.load(v_box + (v_inside + dv_0[None, :]))  # 128
        s = tl.dot(q_0, tl.trans(k_0))
        p = tl.exp2(s * scale2 - lse2[:, None])  # (rows, cols)
        ds = p * (tl.dot(do_0, tl.trans(v_0)) - delta[:, None])
        ds = ds.to(k_0.dtype)
        dq_0 = tl.dot(ds, k_0, dq_0)
    dq_rows = DQ + (batch * DQ_batch + head.to(tl.int64) * DQ_head) * 8
    dq_rows_in = token_r.to(tl.int64) * DQ_row * 8
    dq_0 = dq_0 * scale
    dq_0 = dq_0.to(DQ.dtype.element_ty)
    tl.store(dq_rows + (dq_rows_in[:, None] + d_0[None, :]), dq_0, mask=valid[:, None])


kernel = weft_bwd_dq_tile_table_line_d128_bf16
