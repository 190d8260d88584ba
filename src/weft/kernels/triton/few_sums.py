"""The sums that `weft.kernels.triton.few_keys` leaves of each program, added to dK and dV in one order. Functions of
Gluon, inlined into an emitted kernel.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from weft.kernels.gpu.hopper.ops.values import Tensor
from weft.planning.families import sparse_keys as few_keys

ROWS, TILES = gl.constexpr(few_keys.JOINED), gl.constexpr(few_keys.TILES)  # keys of a program; tiles of a launch
TOGETHER = gl.constexpr(16)  # sums that are asked for together, four of them by a warp: ptxas waits for them singly


@gluon.jit
def join(Partial, parts, keys, gradients, kv_heads, scale):
    """One program adds to so many keys of dK and dV. parts: sums of each head; keys: (first token, step, how many);
    gradients: dK and dV, each (pointer, strides of batch, head and row in 16 bytes).
    """
    lies: gl.constexpr = gl.BlockedLayout([TOGETHER // 4, 1, 4], [1, 2, 16], [4, 1, 1], [2, 1, 0])
    of_rows: gl.constexpr = gl.SliceLayout(0, lies)
    at = gl.program_id(0)
    first, step, count = keys
    some = (count + ROWS - 1) // ROWS
    member, first_key = at // some, at % some * ROWS
    key = first_key + gl.arange(0, ROWS, layout=gl.SliceLayout(1, of_rows))
    d = gl.arange(0, 64, layout=gl.SliceLayout(0, of_rows))
    n = gl.arange(0, TOGETHER, layout=gl.SliceLayout(1, gl.SliceLayout(2, lies)))
    n = gl.expand_dims(gl.expand_dims(n, 1), 2)
    place = gl.expand_dims(gl.expand_dims(key % 64 * 64, 1) + gl.expand_dims(d, 0), 0)
    sums = Partial + member.to(gl.int64) * parts * (TILES * 8192) + first_key // 64 * 8192
    where = (member // kv_heads, member % kv_heads, first + step * key, d)
    mask = gl.expand_dims(key < count, 1)
    dk_at, dv_at = place_of(gradients[0], where), place_of(gradients[1], where)
    dk_before, dv_before = gl.load(dk_at, mask=mask, other=0.0), gl.load(dv_at, mask=mask, other=0.0)
    dk = gl.zeros([ROWS, 64], gl.float32, of_rows)
    dv = gl.zeros([ROWS, 64], gl.float32, of_rows)
    for begin in range(0, parts, TOGETHER):
        here = sums + ((begin + n).to(gl.int64) * (TILES * 8192) + place)
        more_dk = gl.load(here, mask=begin + n < parts, other=0.0)
        more_dv = gl.load(here + 4096, mask=begin + n < parts, other=0.0)
        dk += gl.sum(more_dk, 0)
        dv += gl.sum(more_dv, 0)
    gl.store(dk_at, (dk_before.to(gl.float32) + dk * scale).to(dk_before.dtype), mask=mask)
    gl.store(dv_at, (dv_before.to(gl.float32) + dv).to(dv_before.dtype), mask=mask)


@gluon.jit
def place_of(tensor, where):
    """Where rows of a gradient are; where: (batch row, head, tokens, channels)."""
    batch, head, token, d = where
    row = token.to(gl.int64) * (tensor[3] * 8)
    tensor = Tensor(tensor[0], tensor[1], tensor[2], tensor[3])
    return tensor.row(batch, head, batch * 0) + (gl.expand_dims(row, 1) + gl.expand_dims(d, 0))
