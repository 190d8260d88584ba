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
        x = x * _share(x, _normal_tail(tl.abs(x)))
    elif NAME == "gelu_tanh":
        x = x * _share(x, _tanh_tail(tl.abs(x)))
    elif NAME == "silu":
        x = x / (1.0 + tl.exp2(x * -LOG2E))
    return x


# The share of a distribution beyond z is 2 to a polynomial of z: its logarithm is smooth, and falls for all z. Per
# number that is one instruction of the unit for exponentials, which tensor cores wait for otherwise.
@triton.jit
def _share(x, tail):
    """The share below x of a distribution that is symmetric, of which `tail` is the share beyond |x|."""
    return tl.where(x < 0.0, tail, 1.0 - tail)


@triton.jit
def _normal_tail(z):
    """The share of a normal distribution beyond z >= 0; z times it is within 5e-7."""
    return tl.exp2(
        -1.0000376 + z * (-1.1507878 + z * (-0.45999261 + z * (-0.051827200 + z * (0.0070844742 + z * -0.00047329591))))
    )


@triton.jit
def _tanh_tail(z):
    """The share of which GELU by tanh takes z for a normal one; z times it is within 1e-7."""
    high = 0.0023398324 + z * (0.0047557922 + z * (-0.0028226429 + z * (0.00051981688 + z * -3.3149796e-05)))
    return tl.exp2(-1.0000104 + z * (-1.1509135 + z * (-0.46039132 + z * (-0.048089189 + z * high))))


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
