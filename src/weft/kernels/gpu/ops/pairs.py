"""What the text of score functions calls beside Triton's own functions. Pointwise."""

import triton
import triton.language as tl

from weft.kernels.gpu.ops.bounds import tanh

__all__ = ["floor_divide", "read_ahead", "read_now", "remainder", "tanh"]


@triton.jit
def remainder(a, b):
    """a modulo b of integers, with the sign of b."""
    rest = a % b
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


@triton.jit
def floor_divide(a, b):
    """a / b of integers, rounded down; Triton's own division drops the fraction."""
    return (a - remainder(a, b)) // b


@triton.jit
def read_now(pointers):
    """Numbers of float32 that lie at pointers, by NVIDIA's instruction.

    Triton would have a load bring each number of a tile to shared memory, two tiles ahead, by a copy of 4 bytes.
    """
    return tl.inline_asm_elementwise(
        "ld.global.nc.f32 $0, [$1];", "=f,l", [pointers], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def read_ahead(pointers):
    """The same long before they are needed. It stays before the next barrier, behind which `read_now` is moved."""
    return tl.inline_asm_elementwise(
        "ld.global.f32 $0, [$1];", "=f,l", [pointers], dtype=tl.float32, is_pure=True, pack=1
    )
