# ruff: noqa: PLR0913 - kernels take as many arguments as they need, and Gluon is not all of Python
"""Rows of a forward by warp groups whose sums left the range, once more, when all blocks are done. Functions of Gluon,
inlined into an emitted kernel.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma, warpgroup_mma_wait

from weft.kernels.triton.groups import (
    LOG2E,
    PART,
    TILE,
    UNIT,
    axis_of,
    block_at,
    head_of,
    masked,
    numbers,
    places_of,
    seen,
)
from weft.kernels.triton.query_blocks import TERM, bounds_of, keys_of, tiles_of

LN2 = gl.constexpr(0.6931471805599453)


@gluon.jit
def with_sink(alone, sink, largest):
    """(what sums and their weights are multiplied by, what the sink adds to these, what is taken off scores); sink,
    largest: in bits, the latter taken off scores before. alone: there is no key.
    """
    above = gl.maximum(largest, sink)
    above = gl.where(above == float("-inf"), 0.0, above)  # neither keys nor a sink
    return gl.where(alone, 0.0, gl.exp2(largest - above)), gl.exp2(sink - above), above


@gluon.jit
def fetch(to, tensor, heads, first, count, step):
    """A tile of rows, by the group that computes, when nothing else runs."""
    lies: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    r = gl.minimum(gl.arange(0, 64, layout=gl.SliceLayout(1, lies)), count - 1)
    d = gl.expand_dims(gl.arange(0, 64, layout=gl.SliceLayout(0, lies)), 0)
    at = head_of(tensor, heads[0], heads[1], first)
    to.store(gl.load(at + (gl.expand_dims(r * step * (tensor[3] * UNIT), 1) + d)))
    fence_async_shared()


@gluon.jit
def walk_again(sums, mine, keys, room_of, heads, at):
    """(sums, sums of weights, largest score) after one term more, online."""
    q, columns, scale2 = mine
    acc, total, largest = sums
    k, v = room_of
    lies: gl.constexpr = acc.type.layout
    factor: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=lies, k_width=2)
    low, high, first, count, origin, step = at
    for j in range(0, tiles_of(count)):
        fetch(k, keys[0], heads, origin + first + j * TILE * step, count - j * TILE, step)
        fetch(v, keys[1], heads, origin + first + j * TILE * step, count - j * TILE, step)
        x = warpgroup_mma(q, k.permute((1, 0)), acc * 0.0, use_acc=False, is_async=True)
        x = warpgroup_mma_wait(0, (x,))
        mask, bit = seen(low - j * TILE, high - j * TILE, columns)
        x = masked(x, mask, bit, float("-inf"))
        new = gl.maximum(largest, gl.max(x, 1) * scale2)
        safe = gl.where(new == float("-inf"), 0.0, new)  # of rows that have seen no key yet
        p = gl.exp2(x * scale2 - gl.expand_dims(safe, 1))
        kept = gl.exp2(largest - safe)
        total = total * kept + gl.sum(p, 1)
        largest = new
        y = warpgroup_mma(gl.convert_layout(p.to(gl.bfloat16), factor), v, acc * gl.expand_dims(kept, 1), is_async=True)
        acc = warpgroup_mma_wait(0, (y,))
    return acc, total, largest


@gluon.jit
def again(read, written, rooms, tables, numbers_of, WIDE: gl.constexpr, TERMS: gl.constexpr, SINKS: gl.constexpr):
    """The rows of a program's blocks that are marked, once more, with the largest score taken off. rooms: for a tile of
    queries, of keys and of values.
    """
    queries, keys, _ = read
    Out, Lse = written
    all_heads, length, scale, Sinks = numbers_of
    lies: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16])
    of_rows: gl.constexpr = gl.SliceLayout(1, lies)
    r = gl.arange(0, 64, layout=of_rows)
    columns = gl.arange(0, 64, layout=gl.SliceLayout(0, lies))
    q, room_of = rooms[0], (rooms[1], rooms[2])
    here = tables[0] + tables[2]
    origin, pace = gl.load(tables[0]), gl.load(tables[0] + 3)
    scale2 = scale * LOG2E
    for number in range(gl.program_id(0), tables[6], gl.num_programs(0)):
        where = block_at(number, tables)
        batch, kv_head, head, start, height, first, count = numbers(tables, where)
        far_first, far_count = keys_of(places_of(tables, where)[1], TERMS - 1)
        for c in range(0, WIDE):
            mine = r + c * 64
            row = start + gl.minimum(mine, height - 1) * pace
            lse_at = Lse + (batch.to(gl.int64) * all_heads + head) * length + origin + row
            before = gl.load(lse_at, mask=mine < height, other=0.0)
            wild = before != before
            if gl.max(wild.to(gl.int32), 0) != 0:
                fetch(q, queries, (batch, head), origin + start + c * 64 * pace, height - c * 64, pace)
                none = gl.full([64], float("-inf"), gl.float32, of_rows)
                sums = (gl.zeros([64, 64], gl.float32, lies), gl.zeros([64], gl.float32, of_rows), none)
                low, high = bounds_of(axis_of(here), start, mine, pace, height, first, count)
                at = (low, high, first, count, gl.load(here), gl.load(here + PART))
                sums = walk_again(sums, (q, columns, scale2), keys, room_of, (batch, kv_head), at)
                if TERMS == 2:
                    axis = axis_of(here + TERM)
                    low, high = bounds_of(axis, start, mine, pace, height, far_first, far_count)
                    at = (low, high, far_first, far_count, gl.load(here + TERM), gl.load(here + TERM + PART))
                    sums = walk_again(sums, (q, columns, scale2), keys, room_of, (batch, kv_head), at)
                acc, total, largest = sums
                if SINKS:
                    sink = gl.load(Sinks + head) * LOG2E
                    less, more, largest = with_sink(total == 0, sink, largest)
                    acc, total = acc * gl.expand_dims(less, 1), total * less + more
                out = acc * gl.expand_dims(gl.where(total == 0, 0.0, 1.0 / total), 1)
                lse = gl.where(total == 0, float("-inf"), (largest + gl.log2(total)) * LN2)
                gl.store(lse_at, lse, mask=wild)
                at = gl.expand_dims(row * (Out[3] * UNIT), 1) + gl.expand_dims(columns, 0)
                gl.store(head_of(Out, batch, head, origin) + at, out.to(gl.bfloat16), mask=gl.expand_dims(wild, 1))
