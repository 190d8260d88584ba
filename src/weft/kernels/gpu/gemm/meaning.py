"""What the kernels of this room compute, in float64."""

from __future__ import annotations

from dataclasses import dataclass
from math import erf, pi, sqrt
from typing import Any

import numpy as np

Array = np.ndarray
_erf = np.vectorize(erf, otypes=[np.float64])


def gelu(x: Array) -> Array:
    """x times the share of a normal distribution below x."""
    return 0.5 * x * (1 + _erf(x / sqrt(2)))


def gelu_tanh(x: Array) -> Array:
    """Its approximation by tanh, as GPT-2 has it."""
    return 0.5 * x * (1 + np.tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))


def silu(x: Array) -> Array:
    """x times the logistic function of x."""
    return x / (1 + np.exp(-x))


ACTIVATIONS = {
    "": lambda x: x,
    "relu": lambda x: np.maximum(x, 0.0),
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "silu": silu,
}


@dataclass(frozen=True)
class Epilogue:
    """What follows x @ weight.T; all in float64.

    bias (n,), gate (n, k), gate_bias (n,), residual (m, n). activation: a key of ACTIVATIONS, for the gate where there
    is one and else for the product. squares (tiles, m): sums of squares of x before a norm over `count` numbers. Rows
    are divided by the root of their mean plus `epsilon`.
    """

    activation: str = ""
    bias: Array | None = None
    gate: Array | None = None
    gate_bias: Array | None = None
    residual: Array | None = None
    squares: Array | None = None
    count: int = 1
    epsilon: float = 0.0


def product(x: Array, weight: Array, rest: Epilogue) -> Array:
    """(m, n): act(s x @ gate.T + gate_bias) * (s x @ weight.T + bias) + residual, without what is None.

    Without a gate: act(s x @ weight.T + bias) + residual. s (m, 1): 1 / root mean square, or 1.
    """
    act = ACTIVATIONS[rest.activation]
    value, *gating = before(x, weight, rest)
    value = act(gating[0]) * value if gating else act(value)
    return value + _or_zero(rest.residual)


def before(x: Array, weight: Array, rest: Epilogue) -> list[Array]:
    """[(m, n)] of the product before its activation, then of the gate where there is one: what gradients need."""
    scale = 1.0 if rest.squares is None else row_scale(rest.squares, rest.count, rest.epsilon)[:, None]
    found = [scale * (x @ weight.T) + _or_zero(rest.bias)]
    return found if rest.gate is None else [*found, scale * (x @ rest.gate.T) + _or_zero(rest.gate_bias)]


def row_scale(squares: Array, count: int, epsilon: float) -> Array:
    """(m,): 1 / root mean square of rows of `count` numbers, from sums of squares (tiles, m)."""
    return 1 / np.sqrt(squares.sum(0) / count + epsilon)


def squares_of(out: Array, cols: int) -> Array:
    """(tiles, m): sums of squares of out (m, n) by tiles of `cols` columns."""
    m, n = out.shape
    padded = np.pad(out, ((0, 0), (0, -n % cols)))
    return (padded.reshape(m, -1, cols) ** 2).sum(-1).T


def rope(x: Array, cos: Array, sin: Array, interleaved: bool = False) -> Array:
    """Heads rotated by position: x (tokens, heads, d), cos and sin (tokens, d).

    Dimension i turns with i + d/2, or 2 i with 2 i + 1 where `interleaved`. The pair (a, b) becomes
    (a cos - b sin, b cos + a sin).
    """
    turned = np.empty_like(x)
    if interleaved:
        turned[..., 0::2], turned[..., 1::2] = -x[..., 1::2], x[..., 0::2]
    else:
        half = x.shape[-1] // 2
        turned[..., :half], turned[..., half:] = -x[..., half:], x[..., :half]
    return x * cos[:, None] + turned * sin[:, None]


def head_norm(x: Array, weight: Array, epsilon: float) -> Array:
    """Each head divided by its root mean square, times weight (d,): x (tokens, heads, d)."""
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * weight


def _or_zero(x: Array | None) -> Any:
    return 0.0 if x is None else x
