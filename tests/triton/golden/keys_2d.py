"""dkdv_bfloat16_128_2d_64x32_whole_grouped_held_chained_apart

Emitted by weft; 4 warps, 3 stages."""

import triton
import triton.language as tl

from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from weft.kernels.gpu.ops.bounds import (
    in_three, is_out, lines, lower_table, positions, stairs, tanh, upper_table,
)


@triton.jit
def weft_bwd_dkdv_tile_grid2_d128_bf16(
    Q, K, V, DOut, Stats, Tables, record, parts, parts_at, items_at, heads_at, first_item, all_heads,
    my_length, their_length, shift, Q_batch, Q_head, Q_row, K_batch, K_head, K_row, V_batch, V_head,
    V_row, DOut_batch, DOut_head, DOut_row, DK_batch, DK_head, DK_row, DV_batch, DV_head, DV_row, scale,
    softcap, DK, DV,
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
    r = tl.arange(0, 64)
    valid = r >= 0
    rest = r
    r_1 = rest & ((1 << tl.load(Tables + 5)) - 1)
    rest = rest >> tl.load(Tables + 5)
    rows_1 = tl.load(mine + 3)
    valid &= r_1 < rows_1
    r_1 = tl.minimum(r_1, rows_1 - 1)
    start_1 = tl.load(mine + 2)
    r_1 = r_1 * tl.load(Tables + 6)
    i_1 = start_1 + r_1
    r_0 = rest
    rows_0 = tl.load(mine + 1)
    valid &= r_0 < rows_0
    r_0 = tl.minimum(r_0, rows_0 - 1)
    start_0 = tl.load(mine + 0)
    r_0 = r_0 * tl.load(Tables + 3)
    i_0 = start_0 + r_0
    first_r = tl.load(Tables) + (start_0) * tl.load(Tables + 7) + start_1
    near_r = (r_0) * tl.load(Tables + 7) + r_1
    token_r = first_r + near_r  # (rows,)
    d_0 = 0 + tl.arange(0, 128)
    dv_0 = 0 + tl.arange(0, 128)
    k_rows = K + (batch * K_batch + kv_head * K_head) * 8
    k_rows_in = token_r.to(tl.int64) * K_row * 8
    k_0 = tl.load(k_rows + (k_rows_in[:, None] + d_0[None, :]))  # 128
    v_rows = V + (batch * V_batch + kv_head * V_head) * 8
    v_rows_in = token_r.to(tl.int64) * V_row * 8
    v_0 = tl.load(v_rows + (v_rows_in[:, None] + dv_0[None, :]))  # 128
    scale2 = scale * 1.4426950408889634
    stat = tl.arange(0, 16)
    of_lse = tl.where((stat < 8)[None, :] & (r >= 0)[:, None], 1.0, 0.0).to(tl.bfloat16)
    of_delta = tl.where((stat >= 8)[None, :] & (r >= 0)[:, None], 1.0, 0.0).to(tl.bfloat16)
    gdc_wait()  # for all that the launch before this one leaves
    dk_0 = tl.zeros((64, 128), tl.float32)
    dv_sum_0 = tl.zeros((64, 128), tl.float32)
    is_seen = r < 0
    here = Tables + parts_at
    run = mine + 4
    c = tl.arange(0, 32)
    rest_c = c
    first_1 = tl.load(run + 4)
    count_1 = tl.load(run + 5)
    step_1 = tl.load(here + 10)
    length_1 = tl.load(here + 12)
    log_1 = tl.load(here + 11)
    c_1 = rest_c & ((1 << log_1) - 1)
    rest_c = rest_c >> log_1
    boxes_1 = (count_1 + (1 << log_1) - 1) >> log_1
    bounds = Tables + tl.load(here + 13) + 2 * i_1
    low, high = tl.load(bounds), tl.load(bounds + 1)
    reciprocal, digits = tl.load(here + 14), tl.load(here + 15)  # of the step
    low_1 = positions(low, first_1, step_1, reciprocal, digits)  # (rows,)
    high_1 = positions(high, first_1, step_1, reciprocal, digits)
    first_0 = tl.load(run + 0)
    count_0 = tl.load(run + 1)
    step_0 = tl.load(here + 4)
    log_0 = tl.load(here + 5)
    c_0 = rest_c
    boxes_0 = (count_0 + (1 << log_0) - 1) >> log_0
    bounds = Tables + tl.load(here + 7) + 2 * i_0
    low, high = tl.load(bounds), tl.load(bounds + 1)
    reciprocal, digits = tl.load(here + 8), tl.load(here + 9)  # of the step
    low_0 = positions(low, first_0, step_0, reciprocal, digits)  # (rows,)
    high_0 = positions(high, first_0, step_0, reciprocal, digits)
    base = tl.load(here) + (first_0) * length_1 + first_1  # the first token
    token_c = (c_0 * step_0) * length_1 + c_1 * step_1  # (cols,) tokens of a box
    place = tl.arange(0, 16)
    after_1 = 0  # places of the axes after this one
    after_0 = after_1 + (1 << log_1)
    # (rows, places): the bounds of my rows on the axis of a place; (cols, places): 1 at a column's places
    begins = tl.full((64, 16), -1073741824, tl.int32)
    ends = tl.full((64, 16), 1073741824, tl.int32)
    hot = tl.zeros((32, 16), tl.float32)
    of_0 = (place >= after_0) & (place < after_0 + (1 << log_0))
    begins = tl.where(of_0[None, :], low_0[:, None] + (after_0 - place)[None, :], begins)
    ends = tl.where(of_0[None, :], high_0[:, None] + (after_0 - place)[None, :], ends)
    hot = tl.where(of_0[None, :] & (c_0[:, None] == (place - after_0)[None, :]), 1.0, hot)
    of_1 = (place >= after_1) & (place < after_1 + (1 << log_1))
    begins = tl.where(of_1[None, :], low_1[:, None] + (after_1 - place)[None, :], begins)
    ends = tl.where(of_1[None, :], high_1[:, None] + (after_1 - place)[None, :], ends)
    hot = tl.where(of_1[None, :] & (c_1[:, None] == (place - after_1)[None, :]), 1.0, hot)
    hot = hot.to(tl.bfloat16)
    nothing = tl.dot(tl.zeros((64, 16), tl.bfloat16), tl.zeros((16, 16), tl.bfloat16)).to(tl.int32)
    begins += nothing
    ends += nothing
    pace_1 = (step_1 << log_1)
    pace_0 = (step_0 << log_0) * length_1
    is_seen |= (low_0 < high_0) & (low_1 < high_1)
    q_off = (token_c * (Q_row * 8))[:, None]
    o_off = (token_c * (DOut_row * 8))[:, None]
    for one in range(group):
        head = first_head + one
        q_at = Q + (batch * Q_batch + head.to(tl.int64) * Q_head) * 8
        o_at = DOut + (batch * DOut_batch + head.to(tl.int64) * DOut_head) * 8
        row_at = (batch * all_heads + head) * their_length
        j_0 = 0
        j_1 = 0
        for box in range(boxes_0 * boxes_1):
            at = base + j_0 * pace_0 + j_1 * pace_1
            q_box = q_at + at.to(tl.int64) * Q_row * 8
            q_inside = q_off
            q_0 = tl.load(q_box + (q_inside + d_0[None, :]))  # 128
            corner = tl.where(of_0, j_0 << log_0, j_1 << log_1)  # (places,)
            seen = (corner[None, :] >= begins) & (corner[None, :] < ends)
            out = tl.where(seen, 0.0, -1e+38).to(tl.bfloat16)
            stats_at = Stats + (row_at + at) * 16 + (token_c[:, None] * 16 + stat[None, :])
            stats = tl.load(stats_at)  # (cols, 16)
            o_box = o_at + at.to(tl.int64) * DOut_row * 8
            o_inside = o_off
            do_0 = tl.load(o_box + (o_inside + dv_0[None, :]))  # 128
            s = tl.dot(k_0, tl.trans(q_0), tl.dot(of_lse, tl.trans(stats), tl.dot(out, tl.trans(hot))))
            dp = tl.dot(v_0, tl.trans(do_0), tl.dot(of_delta, tl.trans(stats)))
            p = tl.exp2(s * scale2)  # (rows, cols)
            weights = p.to(do_0.dtype)
            dv_sum_0 = tl.dot(weights, do_0, dv_sum_0)
            ds = p * dp
            ds = ds.to(q_0.dtype)
            dk_0 = tl.dot(ds, q_0, dk_0)
            # the next box, last axis first
            j_1 += 1
            over = j_1 == boxes_1
            j_1 = tl.where(over, 0, j_1)
            j_0 += tl.where(over, 1, 0)
    # whatever lies in a key that no query sees (a test for each pair would be one in every tile)
    dk_0 = tl.where(is_seen[:, None], dk_0, 0.0)
    dv_sum_0 = tl.where(is_seen[:, None], dv_sum_0, 0.0)
    dk_rows = DK + (batch * DK_batch + kv_head * DK_head) * 8
    dk_rows_in = token_r.to(tl.int64) * DK_row * 8
    dv_rows = DV + (batch * DV_batch + kv_head * DV_head) * 8
    dv_rows_in = token_r.to(tl.int64) * DV_row * 8
    dk_0 = dk_0 * scale
    dk_0 = dk_0.to(DK.dtype.element_ty)
    tl.store(dk_rows + (dk_rows_in[:, None] + d_0[None, :]), dk_0, mask=valid[:, None])
    dv_sum_0 = dv_sum_0.to(DV.dtype.element_ty)
    tl.store(dv_rows + (dv_rows_in[:, None] + dv_0[None, :]), dv_sum_0, mask=valid[:, None])


kernel = weft_bwd_dkdv_tile_grid2_d128_bf16
