"""sink_gradient_sum

Emitted by weft; 4 warps."""

import triton
import triton.language as tl


@triton.jit
def weft_sink_gradient_sum(
    Sums, parts, Total,
):
    head = tl.program_id(0)
    part = tl.arange(0, 512)
    sums = tl.load(Sums + head * parts + part, mask=part < parts, other=0.0)
    tl.store(Total + head, tl.sum(sums, 0))


kernel = weft_sink_gradient_sum
