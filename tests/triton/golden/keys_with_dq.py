"""dkdv_bfloat16_128_1d_128x32_grouped_with_dq_chained_apart_lines

Emitted by weft; 8 warps, 2 stages."""

import triton
import triton.language as tl

from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from weft.kernels.gpu.ops.bounds import (
    in_three, is_out, lines, lower_table, positions, stairs, tanh, upper_table,
)


@triton.jit
def weft_bwd_dkdv_dq_tile_line_d128_bf16(
    Q, K, V, DOut, Stats, Tables, record, parts, parts_at, items_at, heads_at, first_item, all_heads,
    my_length, their_length, shift, Q_batch, Q_head, Q_row, K_batch, K_head, K_row, V_batch, V_head,
    V_row, DOut_batch, DOut_head, DOut_row, DK_batch, DK_head, DK_row, DV_batch, DV_head, DV_row,
    DQ_batch, DQ_head, DQ_row, scale, softcap, DK, DV, DQ,
):
    # strides count in 16 bytes, 8 elements: rows are aligned
    # which tile of which head: head by head, or where some tiles far outlast the rest, these first
    item = first_item + tl.program_id(1)
    member = Tables + heads_at + 10 * (tl.program_id(0) + tl.program_id(2) * tl.num_programs(0))
    batch = tl.load(member).to(tl.int64)
    kv_head = tl.load(member + 1).to(tl.int64)
    first_head, group = tl.load(member + 2), tl.load(member + 3)
    mine = Tables + items_at + item * record
    # my rows: coordinates i_a on every axis, and tokens; where a tile ends early its last row, again and again
    r = tl.arange(0, 128)
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
    d_0 = 0 + tl.arange(0, 128)
    dv_0 = 0 + tl.arange(0, 128)
    k_rows = K + (batch * K_batch + kv_head * K_head + first_r.to(tl.int64) * K_row) * 8
    k_rows_in = near_r * (K_row * 8)
    v_rows = V + (batch * V_batch + kv_head * V_head + first_r.to(tl.int64) * V_row) * 8
    v_rows_in = near_r * (V_row * 8)
    scale2 = scale * 1.4426950408889634
    stat = tl.arange(0, 16)
    of_lse = tl.where((stat < 8)[None, :] & (r >= 0)[:, None], 1.0, 0.0).to(tl.bfloat16)
    of_delta = tl.where((stat >= 8)[None, :] & (r >= 0)[:, None], 1.0, 0.0).to(tl.bfloat16)
    here = Tables + parts_at
    run = mine + 2
    c = tl.arange(0, 32)
    first_0 = tl.load(run + 0)
    count_0 = tl.load(run + 1)
    step_0 = tl.load(here + 4)
    length_0 = tl.load(here + 6)
    left_0 = tl.load(run + 2)
    full_0 = left_0 + tl.load(run + 3)
    boxes_0 = (count_0 + 31) // 32
    c_0 = c
    low, high = lines(here + 10, i_0, length_0)
    reciprocal, digits = tl.load(here + 8), tl.load(here + 9)  # of the step
    low_0 = positions(low, first_0, step_0, reciprocal, digits)  # (rows,)
    high_0 = positions(high, first_0, step_0, reciprocal, digits)
    base = tl.load(here) + first_0  # the first token
    token_c = c_0 * step_0  # (cols,) tokens of a box
    gdc_wait()  # for all that the launch before this one leaves
    dk_0 = tl.zeros((128, 128), tl.float32)
    dv_sum_0 = tl.zeros((128, 128), tl.float32)
    pace_0 = step_0 * 32
    q_off = (token_c * (Q_row * 8))[:, None]
    o_off = (token_c * (DOut_row * 8))[:, None]
    dq_off = (token_c * (DQ_row * 8))[None, :]
    wanted = valid & (low_0 < high_0)
    k_0 = tl.load(k_rows + (k_rows_in[:, None] + d_0[None, :]), mask=wanted[:, None], other=0.0)  # 128
    v_0 = tl.load(v_rows + (v_rows_in[:, None] + dv_0[None, :]))  # 128
    for one in range(group):
        head = first_head + one
        q_at = Q + (batch * Q_batch + head.to(tl.int64) * Q_head) * 8
        o_at = DOut + (batch * DOut_batch + head.to(tl.int64) * DOut_head) * 8
        row_at = (batch * all_heads + head) * their_length
        dq_at = DQ + (batch * DQ_batch + head.to(tl.int64) * DQ_head) * 8
        for j in range(boxes_0 - full_0 + left_0):  # tiles with an edge
            j_0 = tl.where(j < left_0, j, j + full_0 - left_0)
            there = c < count_0 - j_0 * 32
            at = base + j_0 * pace_0
            q_box = q_at + at.to(tl.int64) * Q_row * 8
            q_inside = q_off
            q_0 = tl.load(q_box + (q_inside + d_0[None, :]), mask=there[:, None], other=0.0)  # 128
            stats_at = Stats + (row_at + at) * 16 + (token_c[:, None] * 16 + stat[None, :])
            stats = tl.load(stats_at, mask=there[:, None], other=0.0)  # (cols, 16)
            s = tl.dot(k_0, tl.trans(q_0), tl.dot(of_lse, tl.trans(stats)))
            p = tl.exp2(s * scale2)  # (rows, cols)
            from_0, to_0 = low_0 - j_0 * 32, high_0 - j_0 * 32
            live = (c[None, :] >= from_0[:, None]) & (c[None, :] < to_0[:, None])
            p = tl.where(live, p, 0.0)
            o_box = o_at + at.to(tl.int64) * DOut_row * 8
            o_inside = o_off
            do_0 = tl.load(o_box + (o_inside + dv_0[None, :]), mask=there[:, None], other=0.0)  # 128
            weights = p.to(do_0.dtype)
            dv_sum_0 = tl.dot(weights, do_0, dv_sum_0)
            ds = p * (tl.dot(v_0, tl.trans(do_0), tl.dot(of_delta, tl.trans(stats))))
            ds = tl.where(p == 0, 0.0, ds)  # whatever lies in a key that no query sees
            ds = tl.where(wanted[:, None], ds, 0.0)  # of unseen keys it may be infinite
            ds = ds.to(q_0.dtype)
            dk_0 = tl.dot(ds, q_0, dk_0)
            dq_box = dq_at + at.to(tl.int64) * DQ_row * 8
            dq = tl.dot(tl.trans(k_0), ds)  # (128, cols)
            dq_place = dq_box + (dq_off + d_0[:, None])
            tl.atomic_add(dq_place, dq, mask=there[None, :], sem="relaxed")
        for j_0 in range(left_0, full_0):  # full tiles
            at = base + j_0 * pace_0
            q_box = q_at + at.to(tl.int64) * Q_row * 8
            q_inside = q_off
            q_0 = tl.load(q_box + (q_inside + d_0[None, :]))  # 128
            stats_at = Stats + (row_at + at) * 16 + (token_c[:, None] * 16 + stat[None, :])
            stats = tl.load(stats_at)  # (cols, 16)
            s = tl.dot(k_0, tl.trans(q_0), tl.dot(of_lse, tl.trans(stats)))
            p = tl.exp2(s * scale2)  # (rows, cols)
            o_box = o_at + at.to(tl.int64) * DOut_row * 8
            o_inside = o_off
            do_0 = tl.load(o_box + (o_inside + dv_0[None, :]))  # 128
            weights = p.to(do_0.dtype)
            dv_sum_0 = tl.dot(weights, do_0, dv_sum_0)
            ds = p * (tl.dot(v_0, tl.trans(do_0), tl.dot(of_delta, tl.trans(stats))))
            ds = tl.where(wanted[:, None], ds, 0.0)  # of unseen keys it may be infinite
            ds = ds.to(q_0.dtype)
            dk_0 = tl.dot(ds, q_0, dk_0)
            dq_box = dq_at + at.to(tl.int64) * DQ_row * 8
            dq = tl.dot(tl.trans(k_0), ds)  # (128, cols)
            dq_place = dq_box + (dq_off + d_0[:, None])
            tl.atomic_add(dq_place, dq, sem="relaxed")
    dk_rows = DK + (batch * DK_batch + kv_head * DK_head + first_r.to(tl.int64) * DK_row) * 8
    dk_rows_in = near_r * (DK_row * 8)
    dv_rows = DV + (batch * DV_batch + kv_head * DV_head + first_r.to(tl.int64) * DV_row) * 8
    dv_rows_in = near_r * (DV_row * 8)
    dk_0 = dk_0 * scale
    dk_0 = dk_0.to(DK.dtype.element_ty)
    tl.store(dk_rows + (dk_rows_in[:, None] + d_0[None, :]), dk_0, mask=valid[:, None])
    dv_sum_0 = dv_sum_0.to(DV.dtype.element_ty)
    tl.store(dv_rows + (dv_rows_in[:, None] + dv_0[None, :]), dv_sum_0, mask=valid[:, None])


kernel = weft_bwd_dkdv_dq_tile_line_d128_bf16
