# ruff: noqa: PLR0913 - what a kernel is told
"""All shares of one row joined by their lses: what a program of the second kernel of split-KV does, in Triton."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from weft.kernels.gpu.ops.loads import columns
from weft.kernels.gpu.ops.online_softmax import Softmax, finish
from weft.kernels.gpu.ops.vectors import exists
from weft.kernels.gpu.split_kv.kernel import UNIT


@triton.jit
def combine(C: tl.constexpr, work, sums, splits, heads, m, results):
    """One program for each row. A share of no key has an lse only. work, sums, results: see `kernel.Results`."""
    DV: tl.constexpr = C.dv
    if C.chained:
        gdc_wait()
    number = tl.program_id(0).to(tl.int64)
    row, batch = number % m, number // m // heads
    head = number // m % heads
    dv = columns(DV)
    if C.once:
        softmax = joined_at_once(C, work, sums, number, splits, dv)
    else:
        softmax = joined(C, work, sums, number, splits, dv)
    sink, out = None, results.out
    if results.sinks is not None:
        sink = tl.load(results.sinks + head)
    acc, lse = finish(softmax, sink)
    tl.store(results.lse + number, lse)
    at = out.pointer + batch * out.batch + head * out.head + row * out.row
    for n in tl.static_range(len(DV)):
        column = dv[n][0]
        if DV[n][2] < DV[n][1]:
            tl.store(at + column * out.dim, acc[n].to(at.dtype.element_ty), mask=column < DV[n][0] + DV[n][2])
        else:
            tl.store(at + column * out.dim, acc[n].to(at.dtype.element_ty))


@triton.jit
def joined_at_once(C: tl.constexpr, work, sums_at, number, splits, columns):
    """`joined` where a block holds all shares. Means are read beside lses, those of no key too."""
    DV: tl.constexpr = C.dv
    WIDTH: tl.constexpr = DV[len(DV) - 1][0] + DV[len(DV) - 1][2]
    b = tl.arange(0, C.block)
    there = b < splits
    at = work + sums_at * UNIT + (number * splits + b) * WIDTH
    lse, means = tl.load(work + number * splits + b, mask=there, other=float("-inf")), ()
    for n in tl.static_range(len(DV)):
        live = exists(DV[n], there, columns[n][1])
        means += (tl.load(at[:, None] + columns[n][0][None, :], mask=live, other=0.0),)
    largest = tl.max(lse, 0)
    weight = tl.exp2(lse - tl.where(largest == float("-inf"), 0.0, largest))
    acc = ()
    for n in tl.static_range(len(DV)):
        some = (weight != 0)[:, None]  # the others' memory was never written
        acc += (tl.sum(tl.where(some, weight[:, None] * means[n], 0.0), 0),)
    return Softmax(acc, largest, tl.sum(weight, 0))


@triton.jit
def joined(C: tl.constexpr, work, sums_at, number, splits, columns):
    """The sums of the shares of one row, blocks of them in turn."""
    DV: tl.constexpr = C.dv
    BLOCK: tl.constexpr = C.block
    WIDTH: tl.constexpr = DV[len(DV) - 1][0] + DV[len(DV) - 1][2]
    b = tl.arange(0, BLOCK)
    tops = tl.full((BLOCK,), float("-inf"), tl.float32)
    for s in range(0, splits, BLOCK):
        tops = tl.maximum(tops, tl.load(work + number * splits + s + b, mask=s + b < splits, other=float("-inf")))
    largest = tl.max(tops, 0)
    safe = tl.where(largest == float("-inf"), 0.0, largest)
    weights, sums = tl.zeros((BLOCK,), tl.float32), ()
    for n in tl.static_range(len(DV)):
        sums += (tl.zeros((BLOCK, DV[n][1]), tl.float32),)
    for s in range(0, splits, BLOCK):
        lse = tl.load(work + number * splits + s + b, mask=s + b < splits, other=float("-inf"))
        weight = tl.exp2(lse - safe)
        weights += weight
        sums = with_shares(DV, sums, weight, work + sums_at * UNIT + (number * splits + s + b) * WIDTH, columns)
    row_sum, acc = tl.sum(weights, 0), ()
    for n in tl.static_range(len(DV)):
        acc += (tl.sum(sums[n], 0),)
    return Softmax(acc, largest, row_sum)


@triton.jit
def with_shares(DV: tl.constexpr, sums, weight, at, columns):
    """Sums (BLOCK, width) with the weighted means of shares, that begin at pointers (BLOCK,)."""
    found = ()
    for n in tl.static_range(len(DV)):
        means = at[:, None] + columns[n][0][None, :]
        mean = tl.load(means, mask=exists(DV[n], weight != 0, columns[n][1]), other=0.0)
        found += (sums[n] + weight[:, None] * mean,)
    return found
