"""Layers whose tokens grow with the ranks, so that each rank's share stays the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

import weft
from weft import causal, window
from weft.pattern.algebra import Pattern

K = 1 << 10


@dataclass(frozen=True)
class Layer:
    """pattern: of a number of ranks. shape: tokens along the axes, of as many."""

    name: str
    pattern: Callable[[int], Pattern]
    shape: Callable[[int], tuple[int, ...]]
    heads: tuple[int, int]
    dim: int
    shards: str = "contiguous"
    dtype: str = "bfloat16"
    scales: bool = True  # whether the work of a rank stays the same

    def tokens(self, ranks: int) -> int:
        return prod(self.shape(ranks))


def documents(tokens: int) -> list[int]:
    """Lengths of a log-normal law, sigma 1, mean 4k or a 32nd of the tokens."""
    mean = min(4096, tokens // 32)
    drawn = np.random.default_rng(0).lognormal(np.log(mean) - 0.5, 1.0, 4 * tokens // mean)
    lengths = np.maximum(1, drawn.astype(int))
    lengths = lengths[: int(np.searchsorted(np.cumsum(lengths), tokens)) + 1]
    lengths[-1] -= lengths.sum() - tokens
    return [int(x) for x in lengths]


def packed(lengths: list[int]) -> Pattern:
    return causal() & weft.documents(lengths)


def of_each_rank(tokens: int, ranks: int) -> Pattern:
    """The same documents once for each rank, in any order, so that work grows with the ranks, and shards cut some."""
    return packed(np.random.default_rng(ranks).permutation(documents(tokens) * ranks).tolist())


def fixed(layer: Layer, letter: str) -> Layer:
    """At the tokens of the issue, whatever the ranks: those that so many ranks have in `layers`."""
    of = {"a": 8, "b": 1, "c": 8}.get(letter, 2)
    made = packed(documents(layer.tokens(of))) if letter == "f" else layer.pattern(of)
    return replace(layer, pattern=lambda _: made, shape=lambda _: layer.shape(of))


def layers(small: bool = False) -> dict[str, Layer]:
    """By letter, most important first. small: for a CPU."""
    n = (lambda tokens: tokens // 128) if small else (lambda tokens: tokens)
    w = (lambda size: max(2, size // 16)) if small else (lambda size: size)

    def line(letter: str, name: str, pattern: Any, tokens: int, **more: Any) -> tuple[str, Layer]:
        made = pattern if callable(pattern) else lambda ranks: pattern
        given = {"heads": (32, 8), "dim": 128} | more
        given |= {"heads": (8, 4), "dim": 16, "dtype": "float32"} if small else {}
        return letter, Layer(name, made, lambda ranks: (ranks * n(tokens),), **given)

    def grid(letter: str, name: str, window: tuple[int, ...], shape: tuple[int, ...], **more: Any) -> tuple[str, Layer]:
        stride = more.pop("stride", None)
        window, shape = (tuple(map(w, window)), tuple(max(4, x // 8) for x in shape)) if small else (window, shape)
        stride = stride and not small and stride
        options = {"stride": stride} if stride else {}
        more |= {"heads": (4, 4), "dim": 16, "dtype": "float32"} if small else {}

        def size(ranks: int) -> tuple[int, ...]:
            return (*shape[:-1], ranks * shape[-1])

        return letter, Layer(
            name, lambda ranks: weft.neighborhood(size(ranks), window, **options), size, shards="boxes", **more
        )

    found = [
        line("a", "window 1024", causal() & window(left=w(1023)), 128 * K, heads=(32, 16)),
        grid("h", "2-D 21x21", (21, 21), (512, 256), heads=(16, 16), dim=64),
        line("f", "documents", lambda ranks: of_each_rank(n(64 * K), ranks), 64 * K, shards="work"),
        line("g", "chunks 8192", causal() & weft.chunks(n(8192)), 64 * K, heads=(40, 8)),
        grid("i", "video 18x24x24", (18, 24, 24), (30, 48, 40), heads=(24, 24), dim=128),
        line("b", "window 128, gpt-oss", causal() & window(left=w(127)), 128 * K, heads=(64, 8), dim=64),
        line("d", "dilated 512 by 4", weft.dilated(w(511), 0, 4), 128 * K),
        line("e", "longformer 512 + 64", weft.longformer(w(512), w(64)), 64 * K, heads=(16, 16), dim=64, scales=False),
        grid("j", "sliding tiles", (18, 24, 24), (30, 48, 40), heads=(24, 24), dim=128, stride=(6, 8, 8)),
        line("c", "causal", causal(), 16 * K, shards="zigzag", scales=False),
        line("k", "strided 128", weft.strided(128 if not small else 8), 32 * K, heads=(16, 16), dim=64, scales=False),
    ]
    return dict(found)
