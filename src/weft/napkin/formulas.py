"""Standard formulas, in bytes, without sympy. Written by `weft.napkin.generate`; do not edit.

nbytes: of one element; g_ and s_: groups and chunks of an axis; M: bytes of the level. x: keys, or the mean span of a
group where attention reads an affine sparse axis (`weft.napkin.span`).
"""

from __future__ import annotations

from math import sqrt


def matmul_transfers(*, a: float, b: float, c: float, g_a: float, g_c: float, nbytes: float) -> float:
    """H of a product (a, b) by (b, c)."""
    return a * b * c * nbytes / g_c + a * b * c * nbytes / g_a + a * c * nbytes


def matmul_memory(*, g_a: float, g_c: float, nbytes: float, s_b: float) -> float:
    """M of one of its groups."""
    return g_a * g_c * nbytes + g_a * nbytes * s_b + g_c * nbytes * s_b


def matmul_optimum(*, M: float, a: float, b: float, c: float, nbytes: float) -> float:
    """The least H of it."""
    return a * c * nbytes + 2 * a * b * c * nbytes ** (3 / 2) / sqrt(M)


def naive_attention_transfers(*, d: float, nbytes: float, q: float, v: float, x: float) -> float:
    """H of attention, operation by operation."""
    return d * nbytes * q + d * nbytes * x + nbytes * q * v + 4 * nbytes * q * x + nbytes * v * x


def attention_transfers(*, d: float, g_q: float, nbytes: float, q: float, v: float, x: float) -> float:
    """H of one head, queries grouped and keys streamed."""
    return d * nbytes * q + d * nbytes * q * x / g_q + nbytes * q * v + nbytes * q * v * x / g_q


def attention_memory(*, d: float, g_q: float, nbytes: float, s_x: float, v: float) -> float:
    """M of one of its groups."""
    return d * g_q * nbytes + d * nbytes * s_x + g_q * nbytes * v + nbytes * s_x * v


def attention_optimum(*, M: float, d: float, nbytes: float, q: float, x: float) -> float:
    """The least H of it where V is as wide as K."""
    return 2 * d * nbytes * q + 4 * d**2 * nbytes**2 * q * x / M
