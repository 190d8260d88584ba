"""join_sinks_bfloat16_80

Emitted by weft; 4 warps."""

import triton
import triton.language as tl


@triton.jit
def weft_join_sinks_bfloat16_80(
    Sinks, rows, heads, length, Out_batch, Out_head, Out_row, Out_dim, Out, Lse,
):
    number = tl.program_id(0).to(tl.int64) * 8 + tl.arange(0, 8)
    valid = number < rows
    row, head = number % length, number // length % heads
    batch = number // length // heads
    lse = tl.load(Lse + number, mask=valid, other=float("-inf"))
    sink = tl.load(Sinks + head, mask=valid, other=float("-inf"))
    top = tl.maximum(lse, sink)
    safe = tl.where(top == float("-inf"), 0.0, top)
    sum2 = tl.exp2((lse - safe) * 1.4426950408889634) + tl.exp2((sink - safe) * 1.4426950408889634)
    total = tl.where(top == float("inf"), top, safe + tl.log2(sum2) * 0.6931471805599453)
    share = tl.where(lse == float("-inf"), 0.0, tl.exp2((lse - total) * 1.4426950408889634))
    out_at = Out + batch * Out_batch + head * Out_head + row * Out_row
    d = 0 + tl.arange(0, 64)
    inside = valid[:, None] & (d < 64)[None, :]
    here = out_at[:, None] + d[None, :] * Out_dim
    out = tl.load(here, mask=inside, other=0.0).to(tl.float32) * share[:, None]
    tl.store(here, out.to(Out.dtype.element_ty), mask=inside)
    d = 64 + tl.arange(0, 16)
    inside = valid[:, None] & (d < 80)[None, :]
    here = out_at[:, None] + d[None, :] * Out_dim
    out = tl.load(here, mask=inside, other=0.0).to(tl.float32) * share[:, None]
    tl.store(here, out.to(Out.dtype.element_ty), mask=inside)
    tl.store(Lse + number, total, mask=valid)


kernel = weft_join_sinks_bfloat16_80
