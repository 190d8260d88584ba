"""dkdv_bfloat16_128_2d_64x16: emitted by weft; 4 warps, 3 stages."""

import triton
import triton.language as tl

from weft.kernels.triton.device import (
    bits_of, is_out, lower_formula, lower_table, positions, repeated, tanh, upper_formula, upper_table,
)


@triton.jit
def kernel(
    Q, K, V, DOut, Lse, Delta, DK, DV, Slopes, Tables, record, parts, parts_at, items_at, heads_at,
    first_item, all_heads, my_length, their_length, shift, Q_batch, Q_head, Q_row, K_batch, K_head,
    K_row, V_batch, V_head, V_row, DOut_batch, DOut_head, DOut_row, DK_batch, DK_head, DK_row, DV_batch,
    DV_head, DV_row, scale, softcap,
):
    # strides come in units of 16 bytes, 8 elements: rows are aligned
    Q_batch = Q_batch * 8; Q_head = Q_head * 8; Q_row = Q_row * 8
    K_batch = K_batch * 8; K_head = K_head * 8; K_row = K_row * 8
    V_batch = V_batch * 8; V_head = V_head * 8; V_row = V_row * 8
    DOut_batch = DOut_batch * 8; DOut_head = DOut_head * 8; DOut_row = DOut_row * 8
    DK_batch = DK_batch * 8; DK_head = DK_head * 8; DK_row = DK_row * 8
    DV_batch = DV_batch * 8; DV_head = DV_head * 8; DV_row = DV_row * 8
    # which tile of which head: neighbouring heads go side by side, longest tiles first
    item = first_item + tl.program_id(1)
    member = Tables + heads_at + 10 * (tl.program_id(0) + tl.program_id(2) * tl.num_programs(0))
    batch = tl.load(member).to(tl.int64)
    kv_head = tl.load(member + 1).to(tl.int64)
    first_head, group = tl.load(member + 2), tl.load(member + 3)
    mine = Tables + items_at + item * record
    # my rows: coordinates i_a on every axis, and tokens
    r = tl.arange(0, 64)
    valid = r >= 0
    rest = r
    r_1 = rest & ((1 << tl.load(Tables + 5)) - 1)
    rest = rest >> tl.load(Tables + 5)
    i_1 = tl.load(mine + 2) + tl.load(Tables + 6) * r_1
    valid &= r_1 < tl.load(mine + 3)
    r_0 = rest
    i_0 = tl.load(mine + 0) + tl.load(Tables + 3) * r_0
    valid &= r_0 < tl.load(mine + 1)
    token_r = tl.load(Tables) + (i_0) * tl.load(Tables + 7) + i_1  # (rows,)
    d_0 = 0 + tl.arange(0, 128)
    dv_0 = 0 + tl.arange(0, 128)
    k_rows = K + batch * K_batch + kv_head * K_head + token_r.to(tl.int64) * K_row
    k_0 = tl.load(k_rows[:, None] + d_0[None, :], mask=valid[:, None], other=0.0)  # 128
    v_rows = V + batch * V_batch + kv_head * V_head + token_r.to(tl.int64) * V_row
    v_0 = tl.load(v_rows[:, None] + dv_0[None, :], mask=valid[:, None], other=0.0)  # 128
    scale2 = scale * 1.4426950408889634
    dk_0 = tl.zeros((64, 128), tl.float32)
    dv_sum_0 = tl.zeros((64, 128), tl.float32)
    for part in range(parts):
        here = Tables + parts_at + part * 76
        run = mine + 4 + part * 8
        c = tl.arange(0, 16)
        rest_c = c
        first_1 = tl.load(run + 4)
        count_1 = tl.load(run + 5)
        left_1 = tl.load(run + 6)
        full_1 = left_1 + tl.load(run + 7)
        step_1 = tl.load(here + 40)
        log_1 = tl.load(here + 41)
        c_1 = rest_c & ((1 << log_1) - 1)
        rest_c = rest_c >> log_1
        boxes_1 = (count_1 + (1 << log_1) - 1) >> log_1
        low = lower_formula(here + 44, i_1)
        high = upper_formula(here + 60, i_1, tl.load(here + 42))
        low_1 = positions(low, first_1, step_1)  # (rows,)
        high_1 = positions(high, first_1, step_1)
        first_0 = tl.load(run + 0)
        count_0 = tl.load(run + 1)
        left_0 = tl.load(run + 2)
        full_0 = left_0 + tl.load(run + 3)
        step_0 = tl.load(here + 4)
        log_0 = tl.load(here + 5)
        c_0 = rest_c
        boxes_0 = (count_0 + (1 << log_0) - 1) >> log_0
        low = lower_formula(here + 8, i_0)
        high = upper_formula(here + 24, i_0, tl.load(here + 6))
        low_0 = positions(low, first_0, step_0)  # (rows,)
        high_0 = positions(high, first_0, step_0)
        base = tl.load(here) + (first_0) * tl.load(here + 42) + first_1  # the first token
        token_c = (c_0 * step_0) * tl.load(here + 42) + c_1 * step_1  # (cols,) tokens of a box from its first one on
        c_slow, c_fast = c >> log_1, c_1
        pace_1 = (step_1 << log_1)
        pace_0 = (step_0 << log_0) * tl.load(here + 42)
        q_off = (token_c * Q_row.to(tl.int32))[:, None]
        o_off = (token_c * DOut_row.to(tl.int32))[:, None]
        for one in range(group):
            head = first_head + one
            q_at = Q + batch * Q_batch + head.to(tl.int64) * Q_head
            o_at = DOut + batch * DOut_batch + head.to(tl.int64) * DOut_head
            row_at = (batch * all_heads + head) * their_length
            j_0 = 0
            j_1 = 0
            for box in range(boxes_0 * boxes_1):
                there = (c_0 < count_0 - (j_0 << log_0)) & (c_1 < count_1 - (j_1 << log_1))
                at = base + j_0 * pace_0 + j_1 * pace_1
                q_box, q_inside = q_at + at.to(tl.int64) * Q_row, q_off
                q_0 = tl.load(q_box + (q_inside + d_0[None, :]), mask=there[:, None], other=0.0)  # 128
                lse = tl.load(Lse + (row_at + at) + token_c, mask=there, other=0.0) * 1.4426950408889634
                s = tl.dot(k_0, tl.trans(q_0))
                p = tl.exp2(s * scale2 - lse[None, :])  # (rows, cols)
                if (j_0 < left_0) | (j_0 >= full_0) | (j_1 < left_1) | (j_1 >= full_1):  # a tile with an edge
                    slow, fast = bits_of(low_0 - (j_0 << log_0), high_0 - (j_0 << log_0), log_0, 0), bits_of(low_1 - (j_1 << log_1), high_1 - (j_1 << log_1), log_1, 0)  # (rows,)
                    p = tl.where((((slow[:, None] >> c_slow[None, :]) & (fast[:, None] >> c_fast[None, :]) & 1) != 0), p, 0.0)
                o_box, o_inside = o_at + at.to(tl.int64) * DOut_row, o_off
                do_0 = tl.load(o_box + (o_inside + dv_0[None, :]), mask=there[:, None], other=0.0)  # 128
                weights = p.to(do_0.dtype)
                dv_sum_0 = tl.dot(weights, do_0, dv_sum_0)
                delta = tl.load(Delta + (row_at + at) + token_c, mask=there, other=0.0)
                ds = p * (tl.dot(v_0, tl.trans(do_0)) - delta[None, :])
                if (j_0 < left_0) | (j_0 >= full_0) | (j_1 < left_1) | (j_1 >= full_1):  # a tile with an edge
                    ds = tl.where(p == 0, 0.0, ds)  # whatever lies in a key that no query sees
                ds = ds.to(q_0.dtype)
                dk_0 = tl.dot(ds, q_0, dk_0)
                # the next box, last axis first
                j_1 += 1
                over = j_1 == boxes_1
                j_1 = tl.where(over, 0, j_1)
                j_0 += tl.where(over, 1, 0)
    dk_rows = DK + batch * DK_batch + kv_head * DK_head + token_r.to(tl.int64) * DK_row
    dv_rows = DV + batch * DV_batch + kv_head * DV_head + token_r.to(tl.int64) * DV_row
    dk_0 = dk_0 * scale
    tl.store(dk_rows[:, None] + d_0[None, :], dk_0.to(DK.dtype.element_ty), mask=valid[:, None])
    tl.store(dv_rows[:, None] + dv_0[None, :], dv_sum_0.to(DV.dtype.element_ty), mask=valid[:, None])
