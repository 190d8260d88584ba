"""Small conformance cases by name: every library function, and what people combine, at any length they fit.

    CASES["window"].make(At(130, 64, "top-left"))  ->  a pattern for 130 queries and 64 keys

Sizes are chosen so that lengths of 1 to about 200 tokens have edges, rows without keys and more than one tile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isqrt
from typing import Any, NamedTuple

import weft
from weft.pattern.algebra import Pattern

BATCH, HEADS = 2, 4  # what the patterns that tell batch rows or heads apart are made for


class At(NamedTuple):
    """Where a pattern is wanted: m queries, n keys, and how they are aligned."""

    m: int
    n: int
    align: str | None = None


@dataclass(frozen=True)
class Case:
    """A pattern factory, and where it may be asked.

    positional: it relates q to k and takes `align`. square: M == N only. least: the shortest length. grid: its tokens
    have several coordinates, so ALiBi is refused.
    """

    make: Callable[[At], Pattern]
    positional: bool = True
    square: bool = False
    least: int = 0
    grid: bool = False

    def fits(self, m: int, n: int) -> bool:
        """Whether the pattern has a meaning for m queries and n keys."""
        return (m == n or not self.square) and min(m, n) >= self.least


def parts(total: int, *weights: int) -> list[int]:
    """Lengths that add up to `total`, roughly in the proportion of `weights`; a weight of 0 gives an empty part."""
    ends = [total * sum(weights[: i + 1]) // sum(weights) for i in range(len(weights))]
    return [b - a for a, b in zip([0, *ends], ends, strict=False)]


def grid(total: int, rank: int = 2) -> tuple[int, ...]:
    """`total` >= 1 tokens as a grid, its axes as even as they come: 130 is (10, 13), a prime (1, total)."""
    if rank == 1:
        return (total,)
    side = next(d for d in range(isqrt(total), 0, -1) if total % d == 0)
    return (side, *grid(total // side, rank - 1))


def _neighborhood(rank: int, size: int, dilation: int = 1, **options: Any) -> Case:
    def make(at: At) -> Pattern:
        shape = grid(at.m, rank)
        steps = [min(dilation, length) for length in shape]
        sizes = [min(size, length // step) for length, step in zip(shape, steps, strict=True)]
        stride = [min(options.get("stride", 1), s) for s in sizes]
        return weft.neighborhood(shape, sizes, stride, steps, options.get("causal", False))

    return Case(make, square=True, least=1, grid=rank > 1)


def _text_and_image(at: At) -> Pattern:
    text, image = parts(at.m, 2, 3)
    shape = grid(image)
    pixels = weft.neighborhood(shape, [min(3, length) for length in shape])
    return weft.segments([text, image], [[weft.causal(), False], [True, pixels]])


def _blocks_of_a_table(at: At) -> Pattern:
    allowed = [[True, False, False], [False, True, True], [True, True, False], [False, False, True]]
    return weft.block_table(parts(at.m, 1, 3, 2, 2), parts(at.n, 2, 1, 3), allowed)


def _part_of_a_grid(at: At) -> Pattern:
    """A box of a grid, and the keys of one that lies beside it."""
    rows, columns = grid(at.m)
    whole = weft.neighborhood((rows + 3, columns + 3), 3 if columns else 1)
    return weft.excerpt(
        whole, (rows + 3, columns + 3), [(1, 1 + rows), (2, 2 + columns)], [(2, 2 + rows), (1, 1 + columns)]
    )


def _block_diffusion(at: At) -> Pattern:
    noisy = at.m // 2
    return weft.segments([2 * noisy, at.m % 2], [[weft.block_diffusion(noisy, 5), False], [True, True]])


def _sliding_tile(at: At) -> Pattern:
    text = 2 - at.m % 2
    return weft.sliding_tile(at.m - text, 2, 3, text=text)


def _frames(at: At) -> tuple[int, int]:
    """(tokens of a frame, frames) that fill the length."""
    frames, frame = grid(at.m)
    return frame, frames


def _bits(at: At) -> Pattern:
    """One word a row for each 64 keys; bits beyond the last key are not set."""
    wide = -(-at.n // 64)
    ones = [((1 << min(64, at.n - 64 * i)) - 1) for i in range(wide)]
    words = [((0x9E3779B97F4A7C15 * (q + 7 * i)) % (1 << 64)) & ones[i] for q in range(at.m) for i in range(wide)]
    return weft.bits([w - (1 << 64) if w >> 63 else w for w in words], at.m, at.n)


def _fitted(make: Callable[[At], Pattern], **options: Any) -> Case:
    return Case(make, square=True, **options)


def _anywhere(make: Callable[[At], Pattern]) -> Case:
    return Case(make, positional=False)


CASES: dict[str, Case] = {
    # one function of the library each
    "full": _anywhere(lambda at: weft.full()),
    "nothing": _anywhere(lambda at: weft.nothing()),
    "causal": Case(lambda at: weft.causal(align=at.align)),
    "causal_strict": Case(lambda at: weft.causal(offset=-3, align=at.align)),
    "causal_ahead": Case(lambda at: weft.causal(offset=5, align=at.align)),
    "window": Case(lambda at: weft.window(left=9, right=4, align=at.align)),
    "window_self": Case(lambda at: weft.window(left=0, right=0, align=at.align)),
    "window_left_open": Case(lambda at: weft.window(right=7, align=at.align)),
    "window_right_open": Case(lambda at: weft.window(left=16, align=at.align)),
    "window_beyond": Case(lambda at: weft.window(left=1000, right=1000, align=at.align)),
    "dilated": Case(lambda at: weft.dilated(2, 2, 3, align=at.align)),
    "dilated_left": Case(lambda at: weft.dilated(4, 0, 7, align=at.align)),
    "modular": Case(lambda at: weft.dilated(1 << 20, 1 << 20, 4, align=at.align)),
    "periodic_keys": _anywhere(lambda at: weft.periodic_keys(4)),
    "periodic_keys_phase": _anywhere(lambda at: weft.periodic_keys(5, phase=2)),
    "strided": Case(lambda at: weft.strided(8, align=at.align)),
    "fixed": Case(lambda at: weft.fixed(8, align=at.align)),
    "fixed_summary": Case(lambda at: weft.fixed(8, summary=3, align=at.align)),
    "sparse_transformer": Case(lambda at: weft.sparse_transformer(6, HEADS, align=at.align)),
    "sparse_transformer_fixed": Case(
        lambda at: weft.sparse_transformer(6, HEADS, kind="fixed", summary=2, align=at.align)
    ),
    "chunks": Case(lambda at: weft.chunks(24, align=at.align)),
    "blocks": _anywhere(lambda at: weft.blocks(16, [(0, 0), (0, 3), (2, 1), (3, 3), (7, 0)])),
    "blocks_oblong": _anywhere(lambda at: weft.blocks((24, 40), [(0, 1), (1, 0), (1, 1), (4, 2)])),
    "documents": _fitted(lambda at: weft.documents(parts(at.m, 1, 0, 5, 2, 3))),
    "documents_cu_seqlens": _fitted(lambda at: weft.documents(cu_seqlens=[0, at.m // 3, at.m // 3, at.m])),
    "documents_scattered": _fitted(lambda at: weft.documents(ids=[(7 * i // 5) % 3 for i in range(at.m)])),
    "padding": _anywhere(lambda at: weft.padding([at.n // 2, at.n])),
    "padding_rows": Case(lambda at: weft.padding([at.n, at.n // 3], rows=True, align=at.align)),
    "prefix": _anywhere(lambda at: weft.prefix(at.n // 3)),
    "prefix_per_row": _anywhere(lambda at: weft.prefix([0, at.n // 2])),
    "global_tokens": Case(lambda at: weft.global_tokens([1, 2, 40, 44, 48], align=at.align)),
    "global_rows": Case(lambda at: weft.global_tokens(3, columns=False, align=at.align)),
    "global_columns": _anywhere(lambda at: weft.global_tokens([0, 5, 60], rows=False)),
    "random_blocks": _anywhere(lambda at: weft.random_blocks(16, 2, seed=3)),
    "segments": _fitted(_text_and_image, least=1, grid=True),
    "longformer": Case(lambda at: weft.longformer(12, align=at.align)),
    "longformer_global": Case(lambda at: weft.longformer(6, global_tokens=2, dilation=3, align=at.align)),
    "bigbird": Case(lambda at: weft.bigbird(block=16, random=1, seed=1, align=at.align)),
    "neighborhood_1d": _neighborhood(1, 7),
    "neighborhood_1d_strided": _neighborhood(1, 9, stride=4, dilation=2),
    "neighborhood_2d": _neighborhood(2, 5),
    "neighborhood_2d_causal": _neighborhood(2, 3, dilation=2, causal=(True, False)),
    "neighborhood_3d": _neighborhood(3, 3, stride=2),
    "per_head": Case(
        lambda at: weft.per_head(
            [weft.causal(align=at.align), weft.full(), weft.nothing(), weft.window(left=5, align=at.align)]
        )
    ),
    "per_batch": Case(lambda at: weft.per_batch([weft.chunks(9, align=at.align), weft.full()])),
    "product": _fitted(lambda at: weft.product([weft.causal(), weft.window(2, 1)], grid(at.m)), least=1, grid=True),
    # parts that recognition writes with
    "keys": _anywhere(lambda at: weft.keys(3, 90, 7, width=2)),
    "queries": Case(lambda at: weft.queries(2, 120, 5, align=at.align)),
    "diagonals": Case(lambda at: weft.diagonals(-30, 8, 4, align=at.align)),
    "staircase": Case(lambda at: weft.staircase("before", (6, 4), (1, 3), (2, 80), align=at.align)),
    "steps": Case(lambda at: weft.steps("from", [5, 5, 40, 66], [0, 3, 9, 30, 64], align=at.align)),
    "coarse": _anywhere(lambda at: weft.coarse(weft.window(left=2, right=0, align="top-left"), (12, 8))),
    "bits": _anywhere(_bits),
    "sized": Case(lambda at: weft.sized(weft.window(left=11, right=2, align=at.align), at.m, at.n)),
    "folded": Case(
        lambda at: weft.folded(weft.causal(align="top-left"), weft.window(left=3, right=3), 9),
        positional=False,
        grid=True,
    ),
    "excerpt": _anywhere(
        lambda at: weft.excerpt(weft.longformer(12, 4), at.m + at.n + 9, (2, 2 + at.m), (3, 3 + at.n))
    ),
    "excerpt_of_a_grid": _fitted(_part_of_a_grid, least=1, grid=True),
    # masks of models
    "block_table": _anywhere(_blocks_of_a_table),
    "tree": _fitted(lambda at: weft.tree([-1, 0, 0, 2, 1], parts(at.m, 3, 1, 0, 2, 2))),
    "block_diffusion": _fitted(_block_diffusion),
    "shared_prefix": _fitted(lambda at: weft.shared_prefix(parts(at.m, 3, 1, 2, 2, 1), [0, 0, 2, 2, 0])),
    "streaming_chunks": Case(lambda at: weft.streaming_chunks(8, 2, align=at.align)),
    "sliding_tile": _fitted(_sliding_tile, least=3, grid=True),
    "svg_spatial": Case(lambda at: weft.svg_spatial(9, 2, prompt=4, sink=True, align=at.align)),
    "svg_temporal": _fitted(lambda at: weft.svg_temporal(*_frames(at), width=1), least=1, grid=True),
    "radial": _fitted(lambda at: weft.radial(*reversed(_frames(at))), least=1, grid=True),
    "rotating_anchors": Case(lambda at: weft.rotating_anchors(7, 1, 4, turn=2, align=at.align)),
    # what people combine
    "sliding_window": Case(lambda at: weft.causal(align=at.align) & weft.window(left=15, align=at.align)),
    "prefix_lm": Case(lambda at: weft.causal(align=at.align) | weft.prefix(at.n // 4)),
    "packed": _fitted(lambda at: weft.documents(parts(at.m, 3, 1, 4)) & weft.causal()),
    "padded_causal": Case(lambda at: weft.padding([at.n, at.n // 2]) & weft.causal(align=at.align)),
    "mixed_dilation": Case(
        lambda at: weft.per_head([weft.dilated(3, 3, step) for step in (1, 2, 4, 4)]).aligned(at.align)
    ),
    "outside_window": Case(lambda at: ~weft.window(left=20, right=20, align=at.align)),
    "shifted": Case(lambda at: weft.chunks(16, align=at.align).shift(q=5, k=-2)),
}
