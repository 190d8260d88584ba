"""reduce_partials_bfloat16_64_1d_64x128_1_groups

Emitted by weft; 1 warp groups, 2 stages."""

from triton.experimental import gluon

from weft.kernels.gpu.hopper.reduce_partials import reduce_partials
from weft.kernels.gpu.hopper.config import Config
from weft.kernels.gpu.hopper.ops.aggregate import constants
from weft.kernels.gpu.hopper.ops.values import Tensor

CONFIG = constants(Config(
    d=64, dv=64, rows=64, columns=64, consumers=1, stages=2, producer_warps=1,
    consumer_registers=240, producer_registers=24,
))  # fmt: skip


@gluon.jit
def weft_reduce_partials_hopper_d64_bf16(
    Partial, parts, first, step, keys, kv_heads, DK_batch, DK_head, DK_row, DV_batch, DV_head, DV_row,
    scale, DK, DV,
):
    dk = Tensor(DK, DK_batch, DK_head, DK_row)
    dv = Tensor(DV, DV_batch, DV_head, DV_row)
    reduce_partials(Partial, parts, (first, step, keys), (dk, dv), kv_heads, scale, cfg=CONFIG)


kernel = weft_reduce_partials_hopper_d64_bf16
