"""Dropout of attention's weights: which pairs are kept, by Philox of (seed, b, h, q, k) alone.

This module is the law. Every backend computes these bits, whatever its tiles, its direction or its hardware.

One call of Philox4x32 with 7 rounds (doi 10.1145/2063384.2063405: the fewest that pass BigCrush) gives four words. They
serve eight pairs with 16 bits each: the queries q and q ^ 8 against the keys k, k ^ 1, k ^ 8 and k ^ 9. One thread of a
warp holds these eight where scores come from a matrix product of NVIDIA's tensor cores with queries as rows. The
counter counts such groups, and the bits that tell their pairs apart choose word and half:

    counter = (16 bits above bit 3 of q with its bits 0 to 2, the same of k without its bit 0, h, b)
    word    = (bit 3 of q) * 2 + (bit 3 of k);  half = bit 0 of k, 0 the low one
    kept    = half-word >= round(rate * 2^16)

Ranks that hold parts of one sequence draw by the indices of the whole: `whole_indices` writes these behind the seed.

The key is the seed, its low and its high 32 bits. Kept weights are divided by the share that is kept, exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]
ROUNDS = 7
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
BUMPS = (0x9E3779B9, 0xBB67AE85)
GROUPED = 16  # consecutive tokens from a multiple of this on are whole groups
HEADER = 4  # the seed, the first head, the number of queries, the number of keys
STEPS = 1 << 16  # a rate is a multiple of 1 / STEPS


def threshold(rate: float) -> int:
    """The half-words below it drop their pair; a rate below 1 keeps some."""
    return min(round(rate * STEPS), STEPS - 1)


def scale(rate: float) -> float:
    """What kept weights are multiplied by."""
    return STEPS / (STEPS - threshold(rate))


def whole_indices(head: int, q: Any, k: Any) -> NDArray[np.int64]:
    """What follows the seed of a part: its first head, and the numbers of its queries (M,) and keys (N,) in the whole.
    Both ascend, but for keys that nobody sees.
    """
    return np.concatenate([[head, len(q), len(k)], q, k]).astype(np.int64)


@dataclass(frozen=True)
class Dropout:
    """rate: the share of weights that is dropped, rounded to 2^-16. seed: an int, of which 64 bits count."""

    rate: float
    seed: int

    def kept(self, b: Any, h: Any, q: Any, k: Any) -> NDArray[np.bool_]:
        """Which pairs are kept; indices broadcast."""
        return halves(self.seed, b, h, q, k) >= threshold(self.rate)

    def factors(self, b: Any, h: Any, q: Any, k: Any) -> NDArray[np.float64]:
        """What the weights of pairs are multiplied by: 0 or `scale`."""
        return np.where(self.kept(b, h, q, k), scale(self.rate), 0.0)


def halves(seed: int, b: Any, h: Any, q: Any, k: Any) -> NDArray[np.uint32]:
    """The 16 bits of each pair. b, h, q, k: integers that broadcast, below 2^32."""
    b, h, q, k = (np.asarray(x).astype(np.uint32) for x in (b, h, q, k))
    words = philox((group(q, 0), group(k, 1), h, b), (seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF))
    word, half = (q >> 3 & 1) * 2 + (k >> 3 & 1), k & 1
    chosen = np.select([word == i for i in range(4)], list(words))
    return (chosen >> (16 * half).astype(np.uint32)) & np.uint32(0xFFFF)


def group(x: Words, drop: int) -> Words:
    """The number of the group of an index: without its bit 3, and without its lowest `drop` bits."""
    return ((x >> np.uint32(4)) << np.uint32(3) | (x & np.uint32(7))) >> np.uint32(drop)


def philox(counter: tuple[Any, Any, Any, Any], key: tuple[int, int]) -> list[Words]:
    """Four words of Philox4x32-7 for each counter (four uint32 arrays that broadcast)."""
    x0, x1, x2, x3 = (np.asarray(x, np.uint64) for x in counter)
    k0, k1 = key
    low = np.uint64(0xFFFFFFFF)
    for _ in range(ROUNDS):
        first, second = x0 * np.uint64(MULTIPLIERS[0]), x2 * np.uint64(MULTIPLIERS[1])
        x0, x1, x2, x3 = (
            (second >> np.uint64(32)) ^ x1 ^ np.uint64(k0), second & low,
            (first >> np.uint64(32)) ^ x3 ^ np.uint64(k1), first & low,
        )  # fmt: skip
        k0, k1 = (k0 + BUMPS[0]) & 0xFFFFFFFF, (k1 + BUMPS[1]) & 0xFFFFFFFF
    return [np.broadcast_to(x, np.broadcast_shapes(*(np.shape(y) for y in (x0, x1, x2, x3)))).astype(np.uint32)
            for x in (x0, x1, x2, x3)]  # fmt: skip
