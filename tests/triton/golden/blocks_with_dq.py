"""dkdv_bfloat16_96_blocks_64x64_grouped_with_dq_chained_apart

Emitted by weft; 8 warps, 2 stages."""

import triton
import triton.language as tl

from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from weft.kernels.gpu.ops.bounds import (
    in_three, is_out, lines, lower_table, positions, stairs, tanh, upper_table,
)


@triton.jit
def weft_bwd_dkdv_dq_tile_blocks_d96_bf16(
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
    r = tl.arange(0, 64)
    first_r = tl.load(mine) * 64
    token_r = first_r + r
    valid = token_r < my_length
    token_r = tl.minimum(token_r, my_length - 1)  # (rows,)
    within = (token_r >= tl.load(Tables + 5)) & (token_r < tl.load(Tables + 6))  # no row beyond sees a key
    d_0 = 0 + tl.arange(0, 64)
    d_1 = 64 + tl.arange(0, 32)
    dv_0 = 0 + tl.arange(0, 64)
    dv_1 = 64 + tl.arange(0, 32)
    k_rows = K + (batch * K_batch + kv_head * K_head) * 8
    k_rows_in = token_r.to(tl.int64) * K_row * 8
    wanted = valid & within
    k_0 = tl.load(k_rows + (k_rows_in[:, None] + d_0[None, :]), mask=wanted[:, None], other=0.0)  # 64
    k_1 = tl.load(k_rows + (k_rows_in[:, None] + d_1[None, :]), mask=wanted[:, None], other=0.0)  # 32
    v_rows = V + (batch * V_batch + kv_head * V_head) * 8
    v_rows_in = token_r.to(tl.int64) * V_row * 8
    v_0 = tl.load(v_rows + (v_rows_in[:, None] + dv_0[None, :]))  # 64
    v_1 = tl.load(v_rows + (v_rows_in[:, None] + dv_1[None, :]))  # 32
    scale2 = scale * 1.4426950408889634
    stat = tl.arange(0, 16)
    of_lse = tl.where((stat < 8)[None, :] & (r >= 0)[:, None], 1.0, 0.0).to(tl.bfloat16)
    of_delta = tl.where((stat >= 8)[None, :] & (r >= 0)[:, None], 1.0, 0.0).to(tl.bfloat16)
    gdc_wait()  # for all that the launch before this one leaves
    dk_0 = tl.zeros((64, 64), tl.float32)
    dk_1 = tl.zeros((64, 32), tl.float32)
    dv_sum_0 = tl.zeros((64, 64), tl.float32)
    dv_sum_1 = tl.zeros((64, 32), tl.float32)
    columns, places, bits = Tables + tl.load(Tables), Tables + tl.load(Tables + 1), Tables + tl.load(Tables + 2)
    begin, end = tl.load(Tables + 3), tl.load(Tables + 4)  # of seen columns
    c = tl.arange(0, 64)
    token_c = c
    q_off = (token_c * (Q_row * 8))[:, None]
    o_off = (token_c * (DOut_row * 8))[:, None]
    dq_off = (token_c * (DQ_row * 8))[None, :]
    for one in range(group):
        head = first_head + one
        q_at = Q + (batch * Q_batch + head.to(tl.int64) * Q_head) * 8
        o_at = DOut + (batch * DOut_batch + head.to(tl.int64) * DOut_head) * 8
        row_at = (batch * all_heads + head) * their_length
        dq_at = DQ + (batch * DQ_batch + head.to(tl.int64) * DQ_head) * 8
        for block in range(tl.load(mine + 1), tl.load(mine + 2)):
            at = tl.load(columns + block) * 64
            there = c < end - at
            seen = there & (c >= begin - at)
            q_box = q_at + at.to(tl.int64) * Q_row * 8
            q_inside = q_off
            q_0 = tl.load(q_box + (q_inside + d_0[None, :]), mask=seen[:, None], other=0.0)  # 64
            q_1 = tl.load(q_box + (q_inside + d_1[None, :]), mask=seen[:, None], other=0.0)  # 32
            stats_at = Stats + (row_at + at) * 16 + (token_c[:, None] * 16 + stat[None, :])
            stats = tl.load(stats_at, mask=there[:, None], other=0.0)  # (cols, 16)
            s = tl.dot(k_1, tl.trans(q_1), tl.dot(k_0, tl.trans(q_0), tl.dot(of_lse, tl.trans(stats))))
            p = tl.exp2(s * scale2)  # (rows, cols)
            place = tl.load(places + block)
            if place >= 0:
                word_0 = tl.load(bits + place * 128 + 2 * r)
                word_1 = tl.load(bits + place * 128 + 2 * r + 1)
                word = tl.where((c < 32)[None, :], word_0[:, None], word_1[:, None])
                p = tl.where(((word >> (c & 31)[None, :]) & 1) != 0, p, 0.0)
            p = tl.where(there[None, :], p, 0.0)
            o_box = o_at + at.to(tl.int64) * DOut_row * 8
            o_inside = o_off
            do_0 = tl.load(o_box + (o_inside + dv_0[None, :]), mask=seen[:, None], other=0.0)  # 64
            do_1 = tl.load(o_box + (o_inside + dv_1[None, :]), mask=seen[:, None], other=0.0)  # 32
            weights = p.to(do_0.dtype)
            dv_sum_0 = tl.dot(weights, do_0, dv_sum_0)
            dv_sum_1 = tl.dot(weights, do_1, dv_sum_1)
            ds = p * (tl.dot(v_1, tl.trans(do_1), tl.dot(v_0, tl.trans(do_0), tl.dot(of_delta, tl.trans(stats)))))
            ds = tl.where(p == 0, 0.0, ds)  # whatever lies in a key that no query sees
            ds = tl.where(wanted[:, None], ds, 0.0)  # of unseen keys it may be infinite
            ds = ds.to(q_0.dtype)
            dk_0 = tl.dot(ds, q_0, dk_0)
            dk_1 = tl.dot(ds, q_1, dk_1)
            dq_box = dq_at + at.to(tl.int64) * DQ_row * 8
            dq = tl.dot(tl.trans(k_0), ds)  # (64, cols)
            dq_place = dq_box + (dq_off + d_0[:, None])
            tl.atomic_add(dq_place, dq, mask=there[None, :], sem="relaxed")
            dq = tl.dot(tl.trans(k_1), ds)  # (32, cols)
            dq_place = dq_box + (dq_off + d_1[:, None])
            tl.atomic_add(dq_place, dq, mask=there[None, :], sem="relaxed")
    dk_rows = DK + (batch * DK_batch + kv_head * DK_head) * 8
    dk_rows_in = token_r.to(tl.int64) * DK_row * 8
    dv_rows = DV + (batch * DV_batch + kv_head * DV_head) * 8
    dv_rows_in = token_r.to(tl.int64) * DV_row * 8
    dk_0 = dk_0 * scale
    dk_1 = dk_1 * scale
    dk_0 = dk_0.to(DK.dtype.element_ty)
    tl.store(dk_rows + (dk_rows_in[:, None] + d_0[None, :]), dk_0, mask=valid[:, None])
    dk_1 = dk_1.to(DK.dtype.element_ty)
    tl.store(dk_rows + (dk_rows_in[:, None] + d_1[None, :]), dk_1, mask=valid[:, None])
    dv_sum_0 = dv_sum_0.to(DV.dtype.element_ty)
    tl.store(dv_rows + (dv_rows_in[:, None] + dv_0[None, :]), dv_sum_0, mask=valid[:, None])
    dv_sum_1 = dv_sum_1.to(DV.dtype.element_ty)
    tl.store(dv_rows + (dv_rows_in[:, None] + dv_1[None, :]), dv_sum_1, mask=valid[:, None])


kernel = weft_bwd_dkdv_dq_tile_blocks_d96_bf16
