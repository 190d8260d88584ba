"""sink_gradient

Emitted by weft; 8 warps."""

import triton
import triton.language as tl


@triton.jit
def weft_sink_gradient(
    Sinks, Lse, Delta, batch, heads, length, Sums,
):
    head, part, parts = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    sink = tl.load(Sinks + head)
    r = tl.arange(0, 4096)
    tiles = (length + 4095) // 4096  # of a batch row
    total = tl.zeros((4096,), tl.float32)
    for tile in range(part, batch * tiles, parts):
        row = tile % tiles * 4096 + r
        rows_at = ((tile // tiles).to(tl.int64) * heads + head) * length
        lse = tl.load(Lse + rows_at + row, mask=row < length, other=float("-inf"))
        delta = tl.load(Delta + rows_at + row, mask=row < length, other=0.0)
        share = tl.exp2(tl.minimum((sink - lse) * 1.4426950408889634, 0.0))  # of the sink in its sum; lse is rounded
        total += tl.where(lse == float("-inf"), 0.0, share * delta)  # a row without keys or sink has none
    tl.store(Sums + head * parts + part, -tl.sum(total, 0))


kernel = weft_sink_gradient
