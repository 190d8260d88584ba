# ruff: noqa: PLR0913 - what a kernel is told
"""The kernel that scales and rounds sums of gradients, which others added in float32."""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait


@triton.jit
def scaled(sums, result, units, scale, UNIT: tl.constexpr, UNITS: tl.constexpr, CHAINED: tl.constexpr):
    """UNITS of a program, of UNIT numbers each. The last come first: the second-level cache may still have them."""
    if CHAINED:
        gdc_wait()
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * UNITS
    unit = first + tl.arange(0, UNITS)[:, None]
    at = unit.to(tl.int64) * UNIT + tl.arange(0, UNIT)[None, :]
    x = tl.load(sums + at, mask=unit < units, other=0.0)
    tl.store(result + at, (x * scale).to(result.dtype.element_ty), mask=unit < units)
