"""forward_bfloat16_128_1d_64x64_no_maximum_fast_log_lines

Emitted by weft; 4 warps, 3 stages."""

import triton
import triton.language as tl

from triton.language.extra.cuda import libdevice

from weft.kernels.gpu.ops.bounds import (
    in_three, is_out, lines, lower_table, positions, stairs, tanh, upper_table,
)


@triton.jit
def weft_fwd_tile_line_d128_bf16(
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
    q_0 = tl.load(q_rows + (q_rows_in[:, None] + d_0[None, :]))  # 128
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
    low, high = lines(here + 10, i_0, length_0)
    reciprocal, digits = tl.load(here + 8), tl.load(here + 9)  # of the step
    low_0 = positions(low, first_0, step_0, reciprocal, digits)  # (rows,)
    high_0 = positions(high, first_0, step_0, reciprocal, digits)
    base = tl.load(here) + first_0  # the first token
    acc_0 = tl.zeros((64, 128), tl.float32)
    total = tl.zeros((64,), tl.float32)
    k_at = K + (batch * K_batch + kv_head * K_head) * 8
    v_at = V + (batch * V_batch + kv_head * V_head) * 8
    pace_0 = step_0 * 64
    for j_0 in range(boxes_0):
        near = tl.minimum(c, count_0 - 1 - j_0 * 64)
        at = base + j_0 * pace_0
        k_box = k_at + at.to(tl.int64) * (K_row.to(tl.int64) * 8)
        k_inside = (near * (step_0 * (K_row * 8)))[:, None]
        k_0 = tl.load(k_box + (k_inside + d_0[None, :]))  # 128
        s = tl.dot(q_0, tl.trans(k_0))
        if (j_0 < left_0) | (j_0 >= full_0):  # a tile with an edge
            from_0, to_0 = low_0 - j_0 * 64, high_0 - j_0 * 64
            live = (c[None, :] >= from_0[:, None]) & (c[None, :] < to_0[:, None])
            s = tl.where(live, s, float("-inf"))
        p = tl.exp2(s * scale2)  # (rows, cols)
        total += tl.sum(p, 1)
        v_box = v_at + at.to(tl.int64) * (V_row.to(tl.int64) * 8)
        v_inside = (near * (step_0 * (V_row * 8)))[:, None]
        v_0 = tl.load(v_box + (v_inside + dv_0[None, :]))  # 128
        p = p.to(v_0.dtype)
        acc_0 = tl.dot(p, v_0, acc_0)
    wild = (total > 1.329227995784916e+36) | (total < 3.552713678800501e-15)
    wild |= tl.sum(acc_0 * 0.0, 1) != 0.0  # infinite, or not a number
    keys = high_0 - low_0
    # a row's only weight, rounded as its value met it: divided by that, the value is exact
    weight = tl.where(keys == 1, total.to(tl.bfloat16).to(tl.float32), total)
    inverse = tl.where(total == 0, 0.0, 1.0 / weight)  # NaN stays NaN
    acc_0 = acc_0 * inverse[:, None]
    lse = tl.where(total == 0, float("-inf"), libdevice.fast_log2f(total) * 0.6931471805599453)
    lse_at = Lse + (batch * all_heads + head) * my_length + token_r
    out_rows = Out + (batch * Out_batch + head.to(tl.int64) * Out_head + first_r.to(tl.int64) * Out_row) * 8
    out_rows_in = near_r * (Out_row * 8)
    tl.store(lse_at, lse)
    acc_0 = acc_0.to(Out.dtype.element_ty)
    tl.store(out_rows + (out_rows_in[:, None] + dv_0[None, :]), acc_0)
    if tl.max(wild.to(tl.int32), 0) != 0:
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
        low, high = lines(here + 10, i_0, length_0)
        reciprocal, digits = tl.load(here + 8), tl.load(here + 9)  # of the step
        low_0 = positions(low, first_0, step_0, reciprocal, digits)  # (rows,)
        high_0 = positions(high, first_0, step_0, reciprocal, digits)
        base = tl.load(here) + first_0  # the first token
        acc_0 = tl.zeros((64, 128), tl.float32)
        largest = tl.full((64,), float("-inf"), tl.float32)
        total = tl.zeros((64,), tl.float32)
        k_at = K + (batch * K_batch + kv_head * K_head) * 8
        v_at = V + (batch * V_batch + kv_head * V_head) * 8
        pace_0 = step_0 * 64
        sees = low_0 < tl.minimum(high_0, count_0)
        sees |= full_0 > left_0  # all rows see the keys of such tiles
        again = tl.max((wild & sees).to(tl.int32), 0)  # 0 or 1
        boxes_0 = boxes_0 * again
        for j_0 in range(boxes_0):
            near = tl.minimum(c, count_0 - 1 - j_0 * 64)
            at = base + j_0 * pace_0
            k_box = k_at + at.to(tl.int64) * (K_row.to(tl.int64) * 8)
            k_inside = (near * (step_0 * (K_row * 8)))[:, None]
            k_0 = tl.load(k_box + (k_inside + d_0[None, :]))  # 128
            s = tl.dot(q_0, tl.trans(k_0))
            if (j_0 < left_0) | (j_0 >= full_0):  # a tile with an edge
                from_0, to_0 = low_0 - j_0 * 64, high_0 - j_0 * 64
                live = (c[None, :] >= from_0[:, None]) & (c[None, :] < to_0[:, None])
                s = tl.where(live, s, float("-inf"))
            new = tl.maximum(largest, tl.max(s, 1) * scale2)
            safe = tl.where(new == float("-inf"), 0.0, new)  # of rows that have seen no key yet
            p = tl.exp2(s * scale2 - safe[:, None])  # (rows, cols)
            kept = tl.exp2(largest - safe)
            total = total * kept + tl.sum(p, 1)
            largest = new
            v_box = v_at + at.to(tl.int64) * (V_row.to(tl.int64) * 8)
            v_inside = (near * (step_0 * (V_row * 8)))[:, None]
            v_0 = tl.load(v_box + (v_inside + dv_0[None, :]))  # 128
            acc_0 = acc_0 * kept[:, None]
            p = p.to(v_0.dtype)
            acc_0 = tl.dot(p, v_0, acc_0)
        inverse = tl.where(total == 0, 0.0, 1.0 / total)  # NaN stays NaN
        acc_0 = acc_0 * inverse[:, None]
        lse = tl.where(total == 0, float("-inf"), (largest + libdevice.fast_log2f(total)) * 0.6931471805599453)
        lse_at = Lse + (batch * all_heads + head) * my_length + token_r
        out_rows = Out + (batch * Out_batch + head.to(tl.int64) * Out_head + first_r.to(tl.int64) * Out_row) * 8
        out_rows_in = near_r * (Out_row * 8)
        tl.store(lse_at, lse, mask=wild)
        acc_0 = acc_0.to(Out.dtype.element_ty)
        tl.store(out_rows + (out_rows_in[:, None] + dv_0[None, :]), acc_0, mask=wild[:, None])


kernel = weft_fwd_tile_line_d128_bf16
