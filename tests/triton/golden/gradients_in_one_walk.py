"""gradients_bfloat16_64_1d_64x192_3_groups

Emitted by weft; 3 warp groups, 3 stages."""

from triton.experimental import gluon

from weft.kernels.triton.one_walk import gradients


@gluon.jit
def weft_bwd_fused_hopper_line_d64_bf16(
    Lse, items, runs, per, tiles, shift, tokens, kv_heads, share, left, right, scale, Q_box, K_box,
    V_box, DOut_box, Out_box, DQ_box, DK_box, DV_box,
):
    gradients(
        (Q_box, K_box, V_box, DOut_box, Out_box), (Lse, Lse, Lse),
        (DQ_box, DK_box, DV_box),
        (items, runs, per, tiles, shift, tokens, kv_heads, share), (left, right), scale,
        LSE_GRADIENT=False, WITH_DELTA=False,
    )


kernel = weft_bwd_fused_hopper_line_d64_bf16
