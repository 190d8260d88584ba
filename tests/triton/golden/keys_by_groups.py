"""dkdv_bfloat16_64_1d_128x64_2_groups_lines_chained_apart

Emitted by weft; 2 warp groups, 4 stages."""

from triton.experimental import gluon

from weft.kernels.gpu.hopper.bwd_dkdv import bwd_dkdv
from weft.kernels.gpu.hopper.config import Config
from weft.kernels.gpu.hopper.ops.aggregate import constants
from weft.kernels.gpu.hopper.ops.scheduler import TileScheduler
from weft.kernels.gpu.hopper.ops.values import Tensor

CONFIG = constants(Config(
    d=64, dv=64, rows=64, columns=64, consumers=2, stages=4, producer_warps=4,
    consumer_registers=224, producer_registers=56,
))  # fmt: skip


@gluon.jit
def weft_bwd_dkdv_hopper_line_d64_bf16(
    Q, K, V, DOut, Stats, Tables, record, parts, parts_at, items_at, heads_at, first_item, all_heads,
    my_length, their_length, shift, blocks_at, blocks, Q_batch, Q_head, Q_row, K_batch, K_head, K_row,
    V_batch, V_head, V_row, DOut_batch, DOut_head, DOut_row, DK_batch, DK_head, DK_row, DV_batch,
    DV_head, DV_row, scale, softcap, DK, DV,
):
    q = Tensor(Q, Q_batch, Q_head, Q_row)
    k = Tensor(K, K_batch, K_head, K_row)
    v = Tensor(V, V_batch, V_head, V_row)
    dout = Tensor(DOut, DOut_batch, DOut_head, DOut_row)
    dk = Tensor(DK, DK_batch, DK_head, DK_row)
    dv = Tensor(DV, DV_batch, DV_head, DV_row)
    scheduler = TileScheduler(Tables, record, parts_at, items_at, heads_at, blocks_at, blocks)
    bwd_dkdv(
        (k, v, q, dout, Stats), (dk, dv), scheduler, (all_heads, their_length, scale),
        CHAINED=True, cfg=CONFIG,
    )


kernel = weft_bwd_dkdv_hopper_line_d64_bf16
