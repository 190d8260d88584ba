# ruff: noqa: PLR0913 - kernels take as many arguments as they need
"""The sums that `bwd_sparse_keys` leaves of each program, added to dK and dV in one order."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from weft.kernels.gpu.hopper.ops.values import UNIT
from weft.planning.families import sparse_keys

ROWS, TILES = gl.constexpr(sparse_keys.REDUCED), gl.constexpr(sparse_keys.TILES)  # keys of a program; tiles of a launch
TOGETHER = gl.constexpr(16)  # sums that are asked for together, four of them by a warp: ptxas waits for them singly


@gluon.jit
def places_of(tensor, member, kv_heads, token, d):
    """Where rows of a gradient are. member: a head of keys, of all batch rows."""
    batch, head = member // kv_heads, member % kv_heads
    row = token.to(gl.int64) * (tensor.per_row * UNIT)
    return tensor.row(batch, head, batch * 0) + (gl.expand_dims(row, 1) + gl.expand_dims(d, 0))


@gluon.jit
def reduce_partials(Partial, parts, keys, gradients, kv_heads, scale, cfg: gl.constexpr):
    """One program adds to so many keys of dK and dV. parts: sums of each head; keys: (first token, step, how many);
    gradients: the tensors dK and dV.
    """
    TILE: gl.constexpr = cfg.rows
    WIDTH: gl.constexpr = cfg.width
    SUMS: gl.constexpr = TILE * WIDTH  # numbers of dK, or of dV, of a tile of keys
    layout: gl.constexpr = gl.BlockedLayout([TOGETHER // 4, 1, 4], [1, 2, 16], [4, 1, 1], [2, 1, 0])
    of_rows: gl.constexpr = gl.SliceLayout(0, layout)
    at = gl.program_id(0)
    first, step, count = keys
    some = (count + ROWS - 1) // ROWS
    member, first_key = at // some, at % some * ROWS
    key = first_key + gl.arange(0, ROWS, layout=gl.SliceLayout(1, of_rows))
    d = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, of_rows))
    n = gl.arange(0, TOGETHER, layout=gl.SliceLayout(1, gl.SliceLayout(2, layout)))
    n = gl.expand_dims(gl.expand_dims(n, 1), 2)
    place = gl.expand_dims(gl.expand_dims(key % TILE * WIDTH, 1) + gl.expand_dims(d, 0), 0)
    sums = Partial + member.to(gl.int64) * parts * (TILES * 2 * SUMS) + first_key // TILE * (2 * SUMS)
    mask = gl.expand_dims(key < count, 1)
    dk_at = places_of(gradients[0], member, kv_heads, first + step * key, d)
    dv_at = places_of(gradients[1], member, kv_heads, first + step * key, d)
    dk_before, dv_before = gl.load(dk_at, mask=mask, other=0.0), gl.load(dv_at, mask=mask, other=0.0)
    dk = gl.zeros([ROWS, WIDTH], gl.float32, of_rows)
    dv = gl.zeros([ROWS, WIDTH], gl.float32, of_rows)
    for begin in range(0, parts, TOGETHER):
        here = sums + ((begin + n).to(gl.int64) * (TILES * 2 * SUMS) + place)
        more_dk = gl.load(here, mask=begin + n < parts, other=0.0)
        more_dv = gl.load(here + SUMS, mask=begin + n < parts, other=0.0)
        dk += gl.sum(more_dk, 0)
        dv += gl.sum(more_dv, 0)
    gl.store(dk_at, (dk_before.to(gl.float32) + dk * scale).to(dk_before.dtype), mask=mask)
    gl.store(dv_at, (dv_before.to(gl.float32) + dv).to(dv_before.dtype), mask=mask)
