"""few_keys_bfloat16_64_1d_64x128_2_groups

Emitted by weft; 2 warp groups, 2 stages."""

from triton.experimental import gluon

from weft.kernels.triton.few_keys import add_gradients


@gluon.jit
def weft_bwd_sparse_keys_hopper_d64_bf16(
    Lse, Delta, Tables, items, parts, tokens, kv_heads, share, place, lane, scale, Q_box, DOut_box,
    K_box, V_box, Partial, DQ_box,
):
    sizes = items, parts, tokens, kv_heads, share, place, lane
    add_gradients(
        (Q_box, DOut_box, DQ_box, K_box, V_box), (Lse, Delta), Partial, sizes, Tables, scale,
    )


kernel = weft_bwd_sparse_keys_hopper_d64_bf16
