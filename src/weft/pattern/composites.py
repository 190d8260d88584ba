"""The library, second part: patterns made of blocks, of unlike parts, of grids, and of other patterns.

As in `weft.pattern.library`, one function each; see there.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft import memory
from weft.errors import PatternError
from weft.pattern.algebra import Align, Pattern
from weft.pattern.arguments import LARGEST, axes, flags, integer, integers, library
from weft.pattern.arguments import patterns as _patterns
from weft.pattern.bounds import IntTable, Stair
from weft.pattern.leaves import Affine, BlockList, PerBatch, PerHead, Product, Segments, Sized
from weft.pattern.library import affine, diagonal, dilated, full, nothing
from weft.pattern.library import global_tokens as _global_tokens
from weft.pattern.relation import Relation, Residue


@library
def random_blocks(block: int, count: int, seed: int = 0) -> Pattern:
    """For each block of `block` queries, `count` distinct blocks of keys drawn by `seed` (BigBird's random part).

    The draw depends on the seed and the numbers of blocks only. Where there are no more than `count`, all are taken.
    """
    least = (("block", block, 1), ("count", count, 0), ("seed", seed, 0))
    return Sized(_draw_blocks, tuple(integer("random_blocks", name, x, low) for name, x, low in least))


def _draw_blocks(m: int, n: int, shift: int, block: int, count: int, seed: int) -> Pattern:
    """Floyd's sampling without replacement, for all rows at once."""
    rows, cols = -(-m // block), -(-n // block)
    count = min(count, cols)
    asked, held = f"random_blocks({block}, {count}) at M={m}, N={n}", 3 * 8 * rows * count  # drawn, and listed by row
    memory.check(asked, held, "take larger blocks, or fewer of them", PatternError)
    generator = np.random.default_rng([seed, rows, cols])
    chosen = np.full((rows, count), -1, np.int64)
    for i, last in enumerate(range(cols - count, cols)):
        pick = generator.integers(0, last + 1, size=rows)
        chosen[:, i] = np.where((chosen == pick[:, None]).any(axis=1), last, pick)
    chosen.sort(axis=1)
    return BlockList(block, block, IntTable(np.repeat(np.arange(rows), count)), IntTable(chosen))


@library
def segments(lengths: Any, patterns: Any, key_lengths: Any = None) -> Pattern:
    """A sequence of unlike parts, say text and an image: patterns[i][j] relates part i's queries to part j's keys.

    Cells are patterns on local indices (resolved at lengths[i], key_lengths[j]), True for all, False or None for
    nothing. M == sum(lengths), N == sum(key_lengths); key_lengths, of as many parts as one likes, defaults to lengths.
    """
    sizes = tuple(int(x) for x in integers("segments", "lengths", lengths).array)
    keys = sizes if key_lengths is None else integers("segments", "key_lengths", key_lengths).array.tolist()
    rows = [_row(row) for row in patterns] if isinstance(patterns, tuple) else []
    if [len(row) for row in rows] != [len(keys)] * len(sizes):
        parts = (
            f"{len(sizes)} parts" if key_lengths is None else f"{len(sizes)} parts of queries and {len(keys)} of keys"
        )
        raise PatternError(
            f"segments(lengths={list(sizes)}, ...)",
            f"patterns has rows of {[len(row) for row in rows]} cells, for {parts} it needs a row for each and a cell "
            "for each in it", "give one row per part, and one cell per part in each row",
        )  # fmt: skip
    return Segments(sizes, tuple(keys), tuple(tuple(_cell(cell) for cell in row) for row in rows))


def _row(row: Any) -> tuple[Any, ...]:
    if isinstance(row, IntTable):
        return tuple(row.array.tolist())
    return row if isinstance(row, tuple) else ()


def _cell(cell: Any) -> Pattern:
    if isinstance(cell, Pattern):
        return cell
    if cell is None or isinstance(cell, bool):
        return full() if cell else nothing()
    raise PatternError(f"segments cell {cell!r}", "it is no pattern", "use a pattern, True, False or None")


@library
def longformer(window: int, global_tokens: int = 0, dilation: int = 1, align: Align = None) -> Pattern:
    """|q - k| <= dilation * (window // 2) on multiples of dilation, or q or k among the first `global_tokens`.

    `window` counts both sides, as Longformer's attention_window does. Source: Beltagy et al. 2020, arXiv 2004.05150.
    """
    half = integer("longformer", "window", window, 0) // 2
    band = dilated(half, half, integer("longformer", "dilation", dilation, 1), align=align)
    count = integer("longformer", "global_tokens", global_tokens, 0)
    return band | _global_tokens(count, align=align) if count else band


@library
def bigbird(
    block: int = 64, window: int = 3, global_blocks: int = 1, random: int = 3, seed: int = 0, align: Align = None
) -> Pattern:
    """On blocks i = q // block, j = k // block: |i - j| <= window // 2. Or i or j is among the first or last
    `global_blocks`, or one of `random` blocks drawn for each i (see `random_blocks`).

    Source: Zaheer et al. 2020, arXiv 2007.14062 (internal transformer construction).
    """
    counts = {"window": window, "global_blocks": global_blocks, "random": random, "seed": seed}
    for name, value in {"block": block, **counts}.items():
        integer("bigbird", name, value, int(name == "block"))
    half = window // 2 * block
    band = Relation((Stair(block, block, base=-half),), (Stair(block, block, base=half + block),))
    pattern = (
        affine("bigbird", align, band) if window else affine("bigbird", align, Relation(upper=(Stair.constant(0),)))
    )
    if global_blocks:
        ends = Sized(_last_blocks, (block, global_blocks), positional=True, align=align)
        first = min(block * global_blocks, LARGEST)  # all tokens of any sequence
        pattern = pattern | _global_tokens(first, align=align) | ends  # type: ignore[assignment]
    return pattern | random_blocks(block, random, seed) if random else pattern


def _last_blocks(m: int, n: int, shift: int, block: int, count: int) -> Pattern:
    """q or k in the last `count` blocks of its own side."""
    first_q, first_k = (block * max(0, -(-length // block) - count) for length in (m + shift, n))
    keys = Affine(Relation(lower=(Stair.constant(first_k),)))
    return keys | Affine(Relation(upper=(Stair.threshold(first_q - shift),)))


@library
def neighborhood(shape: Any, size: Any, stride: Any = 1, dilation: Any = 1, causal: Any = False) -> Pattern:
    """Neighbourhood attention on a grid of 1 to 3 axes; tokens are the row-major flattening of `shape`.

    Per axis each query sees exactly `size` keys around it, in its own residue class modulo `dilation`. At a border the
    window is pushed inwards, not cut. `stride` moves windows in steps (GNA); `causal` axes see no key after the query.
    Integers serve all axes. Source: NATTEN 0.21; Hassani et al. 2024, arXiv 2403.04690; 2025, arXiv 2504.16922.
    """
    rank = 1 if isinstance(shape, int) else len(shape) if isinstance(shape, (IntTable, tuple)) else 0
    if rank not in (1, 2, 3):
        raise PatternError(f"neighborhood(shape={shape!r})", "a grid has 1, 2 or 3 axes", "pass e.g. shape=(64, 64)")
    names = (("shape", shape), ("size", size), ("stride", stride), ("dilation", dilation))
    columns = [axes("neighborhood", name, value, rank, 1) for name, value in names]
    parts = [
        Affine(neighbors(_named(axis, *row), *row))
        for axis, row in enumerate(zip(*columns, flags("neighborhood", "causal", causal, rank), strict=True))
    ]
    return Product(tuple(parts), columns[0], columns[0])


def _named(axis: int, length: int, size: int, stride: int, dilation: int, causal: bool) -> str:
    return f"neighborhood(shape={length}, size={size}, stride={stride}, dilation={dilation}) on axis {axis}"


def neighbors(asked: str, length: int, size: int, stride: int, dilation: int, causal: bool) -> Relation:
    """One axis; asked: what was, in words. NATTEN states the rule on x // dilation. On x itself the same staircase,
    times dilation, says it, because the congruence of k and q picks the residue class.
    """
    if size * dilation > length:
        raise PatternError(
            asked, f"a window of {size} keys {dilation} apart is larger than the grid of {length}",
            "pass size * dilation <= shape",
        )  # fmt: skip
    if stride > size:
        raise PatternError(asked, f"stride {stride} leaves keys out between windows of {size}", "pass stride <= size")
    step = dilation * stride
    leader = stride - 1 if causal else stride // 2
    before = size - 1 if causal else size // 2
    base, span = dilation * (leader - before), dilation * size
    lower = Stair(step, step, base=base, out_lo=0, out_hi=length - span)
    last = diagonal(1) if causal else Stair(step, step, base=base + span, out_lo=span, out_hi=length)
    return Relation((lower,), (last,), diagonal=Residue(dilation))


@library
def per_head(heads: Any) -> Pattern:
    """Head h sees heads[h]; one pattern for each query head."""
    return PerHead(_patterns("per_head", heads))


@library
def per_batch(rows: Any) -> Pattern:
    """Batch row b sees rows[b]."""
    return PerBatch(_patterns("per_batch", rows))


@library
def product(patterns: Any, shape: Any, key_shape: Any = None) -> Pattern:
    """Tokens are the row-major points of a grid; live where every axis is: patterns[a] relates the a-th coordinates.

    M == prod(shape), N == prod(key_shape); key_shape defaults to shape.
    """
    parts = _patterns("product", patterns)
    if isinstance(shape, int):
        raise PatternError(f"product(shape={shape})", "a grid is a list of lengths", f"pass shape=({shape},)")
    sizes = axes("product", "shape", shape, len(parts), 0)
    keys = sizes if key_shape is None else axes("product", "key_shape", key_shape, len(parts), 0)
    return Product(parts, sizes, keys)
