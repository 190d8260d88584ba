"""forward_bfloat16_64_1d_256x64_2_terms_4_groups_lines_no_maximum_fast_log_partial

Emitted by weft; 4 warp groups, 8 stages."""

from triton.experimental import gluon

from weft.kernels.gpu.hopper.fwd import fwd
from weft.kernels.gpu.hopper.config import Config
from weft.kernels.gpu.hopper.ops.aggregate import constants
from weft.kernels.gpu.hopper.ops.scheduler import TileScheduler
from weft.kernels.gpu.hopper.ops.values import Tensor

CONFIG = constants(Config(
    d=64, dv=64, rows=64, columns=64, consumers=4, stages=8, producer_warps=1,
    consumer_registers=112, producer_registers=24, first_tiles=3, terms=2,
))  # fmt: skip


@gluon.jit
def weft_fwd_hopper_line2_d64_bf16(
    Q, K, V, Tables, record, parts, parts_at, items_at, heads_at, first_item, all_heads, my_length,
    their_length, shift, blocks_at, blocks, Q_batch, Q_head, Q_row, K_batch, K_head, K_row, V_batch,
    V_head, V_row, Out_batch, Out_head, Out_row, scale, softcap, Q_near, K_near, V_near, K_far, V_far,
    Out, Lse, Out_near,
):
    q = Tensor(Q, Q_batch, Q_head, Q_row)
    k = Tensor(K, K_batch, K_head, K_row)
    v = Tensor(V, V_batch, V_head, V_row)
    out = Tensor(Out, Out_batch, Out_head, Out_row)
    scheduler = TileScheduler(Tables, record, parts_at, items_at, heads_at, blocks_at, blocks)
    fwd(
        (q, k, v), (Q_near, K_near, V_near, K_far, V_far), (out, Lse, Out_near), scheduler,
        (all_heads, my_length, scale, Lse), cfg=CONFIG,
    )


kernel = weft_fwd_hopper_line2_d64_bf16
