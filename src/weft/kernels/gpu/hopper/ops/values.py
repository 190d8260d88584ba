"""Small things that all kernels use: constants, what hides a value from the compiler, tensors by their strides."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from weft.kernels.gpu.hopper.ops.aggregate import aggregate

UNIT = gl.constexpr(8)  # elements in 16 bytes, which strides count in
LOG2E, LN2 = gl.constexpr(1.4426950408889634), gl.constexpr(0.6931471805599453)


@gluon.jit
def opaque(x):
    """x, of which the compiler knows nothing.

    Triton 3.6 drops a carried scalar that only bounds a loop, and keeps its first value. What is known of a place
    before a loop is kept in registers, or spilled.
    """
    return gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def uniform(x):
    """x, a number of 32 bits that all threads of a warp have, as ptxas knows it.

    It keeps what depends on such numbers in registers of the warp, and addresses of shared memory with them.
    """
    return gl.inline_asm_elementwise(
        "redux.sync.max.s32 $0, $1, -1;", "=r,r", [x], dtype=gl.int32, is_pure=False, pack=1
    )


@aggregate
class Tensor:
    """A tensor (batch, head, row, dim) in global memory, with strides in 16 bytes; dims are dense."""

    pointer: gl.tensor
    per_batch: gl.tensor
    per_head: gl.tensor
    per_row: gl.tensor

    @gluon.jit
    def row(self, batch, head, row):
        """Where a row of a head begins."""
        from_head = batch.to(gl.int64) * self.per_batch + head.to(gl.int64) * self.per_head
        return self.pointer + (from_head + row.to(gl.int64) * self.per_row) * UNIT
