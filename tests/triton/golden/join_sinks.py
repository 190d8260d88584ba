"""join_sinks_bfloat16_80

Written by weft; 4 warps."""

import triton
import triton.language as tl

from weft.kernels.gpu.ops.loads import Strided
from weft.kernels.gpu.sinks.kernel import join_sinks


@triton.jit
def weft_join_sinks_bfloat16_80(
    Sinks, rows, heads, length, Out_batch, Out_head, Out_row, Out_dim, Out, Lse,
):
    join_sinks(
        ((0, 64, 64), (64, 16, 16)), Sinks, Lse, Strided(Out, Out_batch, Out_head, Out_row, Out_dim), rows, heads, length,
    )


kernel = weft_join_sinks_bfloat16_80
