"""sink_gradient

Written by weft; 8 warps."""

import triton
import triton.language as tl

from weft.kernels.gpu.sinks.kernel import sink_gradient


@triton.jit
def weft_sink_gradient(
    Sinks, Lse, Delta, batch, heads, length, Sums,
):
    sink_gradient(Sinks, Lse, Delta, Sums, batch, heads, length)


kernel = weft_sink_gradient
