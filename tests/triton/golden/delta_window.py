"""delta_bfloat16_128_rows_64_with_dq_chained

Emitted by weft; 4 warps, 3 stages."""

import triton
import triton.language as tl

from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from weft.kernels.gpu.ops.bounds import (
    in_three, is_out, lines, lower_table, positions, stairs, tanh, upper_table,
)


@triton.jit
def weft_bwd_delta_tile_d128_bf16(
    Out, DOut, Lse, all_heads, my_length, Out_batch, Out_head, Out_row, DOut_batch, DOut_head, DOut_row,
    DQ_batch, DQ_head, DQ_row, scale, DQ, Stats,
):
    # strides count in 16 bytes, 8 elements: rows are aligned
    gdc_launch_dependents()  # that of dK and dV may begin where this one leaves room
    blocks = (my_length + 63) // 64
    pair = tl.program_id(0) // blocks
    batch, head = (pair // all_heads).to(tl.int64), pair % all_heads
    first_r, r = tl.program_id(0) % blocks * 64, tl.arange(0, 64)
    token_r = first_r + r
    valid = token_r < my_length
    token_r = tl.minimum(token_r, my_length - 1)  # (rows,)
    d_0 = 0 + tl.arange(0, 128)
    dv_0 = 0 + tl.arange(0, 128)
    o_rows = DOut + (batch * DOut_batch + head.to(tl.int64) * DOut_head) * 8
    o_rows_in = token_r.to(tl.int64) * DOut_row * 8
    row = (batch * all_heads + head) * my_length + token_r
    lse = tl.load(Lse + row)
    do_0 = tl.load(o_rows + (o_rows_in[:, None] + dv_0[None, :]))  # 128
    out_rows = Out + (batch * Out_batch + head.to(tl.int64) * Out_head) * 8
    out_rows_in = token_r.to(tl.int64) * Out_row * 8
    o_0 = tl.load(out_rows + (out_rows_in[:, None] + dv_0[None, :]))  # 128
    delta = tl.sum(tl.where(o_0 == 0, 0.0, o_0.to(tl.float32) * do_0.to(tl.float32)), 1)  # (rows,)
    lse = tl.where(lse < -1e+37 * scale, 0.0, lse)  # a row that sees no key
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
    dq_rows = DQ + (batch * DQ_batch + head.to(tl.int64) * DQ_head) * 8
    dq_rows_in = token_r.to(tl.int64) * DQ_row * 8
    dq_0 = tl.zeros((64, 128), tl.float32)
    dq_0 = dq_0.to(DQ.dtype.element_ty)
    tl.store(dq_rows + (dq_rows_in[:, None] + d_0[None, :]), dq_0, mask=valid[:, None])


kernel = weft_bwd_delta_tile_d128_bf16
