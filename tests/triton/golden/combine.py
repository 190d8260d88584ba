"""combine_bfloat16_128_64_once

Written by weft; 4 warps, 1 stages."""

import triton
import triton.language as tl

from weft.kernels.gpu.ops.loads import Strided
from weft.kernels.gpu.split_kv.combine import combine
from weft.kernels.gpu.split_kv.config import Combined
from weft.kernels.gpu.split_kv.kernel import Results


@triton.jit
def weft_decode_combine_d128_bf16(
    Work, splits, all_heads, m, sums, Out_batch, Out_head, Out_row, Out, Lse,
):
    combine(
        Combined(((0, 128, 128),), 64, True, False),
        Work, sums, splits, all_heads, m,
        Results(out=Strided(Out, Out_batch * 8, Out_head * 8, Out_row * 8, 1), lse=Lse),
    )


kernel = weft_decode_combine_d128_bf16
