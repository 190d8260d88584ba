"""sparse_keys_bfloat16_64_1d_64x128_2_groups

Emitted by weft; 2 warp groups, 2 stages."""

from triton.experimental import gluon

from weft.kernels.gpu.hopper.bwd_sparse_keys import Sizes, bwd_sparse_keys
from weft.kernels.gpu.hopper.config import Config
from weft.kernels.gpu.hopper.ops.aggregate import constants

CONFIG = constants(Config(
    d=64, dv=64, rows=64, columns=64, consumers=2, stages=2, producer_warps=1,
    consumer_registers=240, producer_registers=24,
))  # fmt: skip


@gluon.jit
def weft_bwd_sparse_keys_hopper_d64_bf16(
    Lse, Delta, Tables, items, parts, tokens, kv_heads, share, place, lane, scale, Q_box, DOut_box,
    K_box, V_box, Partial, DQ_box,
):
    sizes = Sizes(items, parts, tokens, kv_heads, share, place, lane)
    bwd_sparse_keys(
        (Q_box, DOut_box, DQ_box, K_box, V_box), (Lse, Delta), Partial, sizes, Tables, scale, cfg=CONFIG,
    )


kernel = weft_bwd_sparse_keys_hopper_d64_bf16
