"""few_sums_bfloat16_64_1d_64x128_1_groups

Emitted by weft; 1 warp groups, 2 stages."""

from triton.experimental import gluon

from weft.kernels.triton.few_sums import join


@gluon.jit
def weft_reduce_partials_hopper_d64_bf16(
    Partial, parts, first, step, keys, kv_heads, DK_batch, DK_head, DK_row, DV_batch, DV_head, DV_row,
    scale, DK, DV,
):
    dk = DK, DK_batch, DK_head, DK_row
    dv = DV, DV_batch, DV_head, DV_row
    join(Partial, parts, (first, step, keys), (dk, dv), kv_heads, scale)


kernel = weft_reduce_partials_hopper_d64_bf16
