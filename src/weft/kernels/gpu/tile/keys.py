"""Keys and values, which the forward and the kernel of dQ walk."""

import triton
import triton.language as tl

from weft.kernels.gpu.ops.loads import Walked, columns, head_of, reach
from weft.kernels.gpu.tile.axes import blocks_of, grid_part, line_part


@triton.jit
def part_of(C: tl.constexpr, place, n):
    """The n-th part of what a tile of rows walks."""
    if C.rank == 0:
        part = blocks_of(C, place)
    elif C.rank == 1:
        part = line_part(C, place, n)
    else:
        part = grid_part(C, place, n)
    return part


@triton.jit
def walked_keys(C: tl.constexpr, tensors, place, part):
    """Keys and values as `weft.kernels.gpu.ops.loads.Walked`. Where terms share a loop, their tiles differ in steps."""
    k_inside, v_inside = part.token, part.token
    if C.terms == 1:
        k_inside = reach(C, tensors.k, part.token, 1)[:, None]
        v_inside = reach(C, tensors.v, part.token, 1)[:, None]
    k_head = head_of(C, tensors.k, place.head.batch, place.head.kv_head)
    v_head = head_of(C, tensors.v, place.head.batch, place.head.kv_head)
    k = Walked(tensors.k, k_head, k_inside, columns(C.d))
    return k, Walked(tensors.v, v_head, v_inside, columns(C.dv))
