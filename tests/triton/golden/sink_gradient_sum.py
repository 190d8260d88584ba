"""sink_gradient_sum

Written by weft; 4 warps."""

import triton
import triton.language as tl

from weft.kernels.gpu.sinks.kernel import sink_gradient_sum


@triton.jit
def weft_sink_gradient_sum(
    Sums, parts, Total,
):
    sink_gradient_sum(Sums, Total, parts)


kernel = weft_sink_gradient_sum
