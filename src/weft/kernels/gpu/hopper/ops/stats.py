"""Numbers of a query that its scores and their gradients subtract, as products add them: see `constants.STATS`."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from weft.kernels.gpu import constants
from weft.kernels.gpu.hopper.ops.layouts import sides

STATS = gl.constexpr(constants.STATS)  # of a query: those of lse, then those of delta


@gluon.jit
def ones(ROWS: gl.constexpr, DELTA: gl.constexpr, layout: gl.constexpr):
    """The first factor (rows, STATS) of a product that adds the numbers of lse, or those of delta, to every row."""
    rows, stat = sides(ROWS, STATS, layout)
    mine = (stat >= STATS // 2) if DELTA else (stat < STATS // 2)
    every = gl.expand_dims(rows, 1) >= 0
    return gl.where(gl.expand_dims(mine, 0) & every, 1.0, 0.0).to(gl.bfloat16)
