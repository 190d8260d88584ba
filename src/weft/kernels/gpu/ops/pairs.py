"""What the text of score functions calls beside Triton's own functions. Pointwise."""

import triton
import triton.language as tl

from weft.kernels.gpu.ops.bounds import tanh

__all__ = ["floor_divide", "remainder", "tanh"]


@triton.jit
def remainder(a, b):
    """a modulo b of integers, with the sign of b."""
    rest = a % b
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


@triton.jit
def floor_divide(a, b):
    """a / b of integers, rounded down; Triton's own division drops the fraction."""
    return (a - remainder(a, b)) // b
