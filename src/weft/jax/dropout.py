"""Dropout of weights in jax.numpy: the bits of `weft.score.dropout`, which is the law, in 32-bit integers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jax import Array

from weft.score.dropout import BUMPS, MULTIPLIERS, ROUNDS, scale, threshold

LOW = 0xFFFF


def factors_of(rate: float, seed: Array, pairs: Mapping[str, Array]) -> Array:
    """What the weights of pairs are multiplied by: 0, or more than 1. seed (2,); pairs: b, h, q, k, which broadcast."""
    b, h, q, k = (jnp.asarray(pairs[name]).astype(jnp.uint32) for name in "bhqk")
    words = _philox((_group(q, 0), _group(k, 1), h, b), (seed[0], seed[1]))
    word, half = (q >> 3 & 1) * 2 + (k >> 3 & 1), k & 1
    chosen = jnp.where(word < 2, jnp.where(word == 0, *words[:2]), jnp.where(word == 2, *words[2:]))
    bits = chosen >> (16 * half) & LOW
    return jnp.where(bits >= threshold(rate), scale(rate), 0.0)


def _group(x: Array, drop: int) -> Array:
    return ((x >> 4) << 3 | (x & 7)) >> drop


def _philox(counter: tuple[Array, Array, Array, Array], key: tuple[Any, Any]) -> list[Array]:
    """Four words of Philox4x32-7 for each counter."""
    x0, x1, x2, x3 = jnp.broadcast_arrays(*counter)
    k0, k1 = (x.astype(jnp.uint32) for x in key)
    for _ in range(ROUNDS):
        first, second = (_product(x, by) for x, by in ((x0, MULTIPLIERS[0]), (x2, MULTIPLIERS[1])))
        x0, x1, x2, x3 = second[0] ^ x1 ^ k0, second[1], first[0] ^ x3 ^ k1, first[1]
        k0, k1 = k0 + jnp.uint32(BUMPS[0]), k1 + jnp.uint32(BUMPS[1])
    return [x0, x1, x2, x3]


def _product(x: Array, by: int) -> tuple[Array, Array]:
    """The high and the low 32 bits of a product; without jax_enable_x64 there are no longer integers."""
    high, low = x >> 16, x & LOW
    by_high, by_low = jnp.uint32(by >> 16), jnp.uint32(by & LOW)
    first, second = low * by_high, high * by_low
    carry = (low * by_low >> 16) + (first & LOW) + (second & LOW)
    return high * by_high + (first >> 16) + (second >> 16) + (carry >> 16), x * jnp.uint32(by)
