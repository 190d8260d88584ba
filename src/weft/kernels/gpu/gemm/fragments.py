"""What happens to a tile of sums before it is stored. Functions of Triton, pointwise but for `rotated`."""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def activation(x, NAME: tl.constexpr):
    """x in float32; NAME: a key of `meaning.ACTIVATIONS`."""
    if NAME == "relu":
        x = tl.maximum(x, 0.0)
    elif NAME == "gelu":
        x = x * _normal_share(x)
    elif NAME == "gelu_tanh":
        x = x * _logistic(x * (1.5957691216057308 + 0.07135481627159845 * x * x))
    elif NAME == "silu":
        x = x * _logistic(x)
    return x


@triton.jit
def _logistic(x):
    return 1.0 / (1.0 + tl.exp2(x * -LOG2E))


@triton.jit
def _normal_share(x):
    """The share of a normal distribution below x, within 1e-7 (Abramowitz and Stegun 7.1.26 for one side)."""
    z = tl.abs(x) * 0.7071067811865476
    t = 1.0 / (1.0 + 0.3275911 * z)
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    tail = 0.5 * series * tl.exp2(z * z * -LOG2E)
    return tl.where(x < 0.0, tail, 1.0 - tail)


@triton.jit
def by_head(x, ROWS: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr, INTERLEAVED: tl.constexpr):
    """x (ROWS, HEADS * 2 * HALF) as the two dimensions that turn together, (ROWS, HEADS, HALF) each."""
    if INTERLEAVED:
        pairs = tl.reshape(x, (ROWS, HEADS, HALF, 2))
    else:
        pairs = tl.permute(tl.reshape(x, (ROWS, HEADS, 2, HALF)), (0, 1, 3, 2))
    return tl.split(pairs)


@triton.jit
def flat(first, second, ROWS: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr, INTERLEAVED: tl.constexpr):
    """The inverse of `by_head`."""
    pairs = tl.join(first, second)
    if not INTERLEAVED:
        pairs = tl.permute(pairs, (0, 1, 3, 2))
    return tl.reshape(pairs, (ROWS, HEADS * 2 * HALF))
