"""fused_bfloat16_64_1d_64x192_3_groups

Emitted by weft; 3 warp groups, 3 stages."""

from triton.experimental import gluon

from weft.kernels.gpu.hopper.bwd_fused import bwd_fused
from weft.kernels.gpu.hopper.bwd_fused_loads import Sizes
from weft.kernels.gpu.hopper.config import Config
from weft.kernels.gpu.hopper.ops.aggregate import constants

CONFIG = constants(Config(
    d=64, dv=64, rows=64, columns=64, consumers=3, stages=3, producer_warps=4,
    consumer_registers=160, producer_registers=0, key_stages=5,
))  # fmt: skip


@gluon.jit
def weft_bwd_fused_hopper_line_d64_bf16(
    Lse, items, runs, per, tiles, shift, tokens, kv_heads, share, left, right, scale, Q_box, K_box,
    V_box, DOut_box, Out_box, DQ_box, DK_box, DV_box,
):
    sizes = Sizes(items, runs, per, tiles, shift, tokens, kv_heads, share)
    bwd_fused(
        (Q_box, K_box, V_box, DOut_box, Out_box), (DQ_box, DK_box, DV_box),
        (Lse, Lse, Lse), sizes, (left, right), scale, cfg=CONFIG,
    )


kernel = weft_bwd_fused_hopper_line_d64_bf16
