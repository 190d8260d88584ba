"""forward_bfloat16_128_1d_64x64_lines_no_maximum_fast_log

Written by weft; 4 warps, 3 stages."""

import triton
import triton.language as tl

from weft.kernels.gpu.ops.loads import Strided
from weft.kernels.gpu.ops.scores import Scaling
from weft.kernels.gpu.tile.fwd import Tensors, attention
from weft.kernels.gpu.tile.config import Config
from weft.kernels.gpu.tile.places import LaunchArgs


@triton.jit
def weft_fwd_tile_line_d128_bf16(
    Q, K, V, Tables, record, parts, parts_at, items_at, heads_at, first_item, all_heads, my_length,
    their_length, shift, Q_batch, Q_head, Q_row, K_batch, K_head, K_row, V_batch, V_head, V_row,
    Out_batch, Out_head, Out_row, scale, softcap, Out, Lse,
):
    C: tl.constexpr = Config(
        direction='forward', d=((0, 128, 128),), dv=((0, 128, 128),), rows=64, cols=64, aligned=True,
        unit=8, linear=True, folded=True, wide_rows=True, near_rows=True, lines=True, term_numbers=(0,),
        axes_last_first=(0,), axis_words=38, clamps=True, no_maximum=True, rounds=True, fast_log=True,
    )
    attention(
        C,
        Tensors(
            Strided(Q, Q_batch, Q_head, Q_row, ()),
            Strided(K, K_batch, K_head, K_row, ()),
            Strided(V, V_batch, V_head, V_row, ()),
            Strided(Out, Out_batch, Out_head, Out_row, ()),
            Lse,
            None,
            None,
        ),
        LaunchArgs(Tables, record, parts, parts_at, items_at, heads_at, first_item, all_heads, my_length, their_length),
        Scaling(scale, softcap, shift, None, (), ()),
    )


kernel = weft_fwd_tile_line_d128_bf16
