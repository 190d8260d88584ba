"""merge_bfloat16_128_16x16_split

Emitted by weft; 4 warps, 1 stages."""

import triton
import triton.language as tl


@triton.jit
def weft_decode_combine_d128_bf16(
    Work, splits, all_heads, m, sums, Out_batch, Out_head, Out_row, Out, Lse,
):
    # strides come in units of 16 bytes, 8 elements: rows are aligned
    Out_batch = Out_batch * 8; Out_head = Out_head * 8; Out_row = Out_row * 8
    number = tl.program_id(0).to(tl.int64)
    row, batch = number % m, number // m // all_heads
    head = number // m % all_heads
    dv_0 = 0 + tl.arange(0, 128)
    b = tl.arange(0, 16)
    tops = tl.full((16,), float("-inf"), tl.float32)
    for s in range(0, splits, 16):
        share_lse = tl.load(Work + number * splits + s + b, mask=s + b < splits, other=float("-inf"))
        tops = tl.maximum(tops, share_lse)
    largest = tl.max(tops, 0)
    safe = tl.where(largest == float("-inf"), 0.0, largest)
    weights = tl.zeros((16,), tl.float32)
    sum_0 = tl.zeros((16, 128), tl.float32)
    for s in range(0, splits, 16):
        share_lse = tl.load(Work + number * splits + s + b, mask=s + b < splits, other=float("-inf"))
        weight = tl.exp2(share_lse - safe)
        weights += weight
        sums_at = (Work + sums + (number * splits + s + b) * 128)[:, None] + dv_0[None, :]
        mean = tl.load(sums_at, mask=(weight != 0)[:, None], other=0.0)
        sum_0 += weight[:, None] * mean
    total = tl.sum(weights, 0)
    acc_0 = tl.sum(sum_0, 0)
    inverse = tl.where(total == 0, 0.0, 1.0 / total)  # NaN stays NaN
    acc_0 = acc_0 * inverse
    lse = tl.where(total == 0, float("-inf"), (largest + tl.log2(total)) * 0.6931471805599453)
    tl.store(Lse + number, lse)
    tl.store((Out + batch * Out_batch + head * Out_head + row * Out_row) + dv_0, acc_0.to(Out.dtype.element_ty))


kernel = weft_decode_combine_d128_bf16
