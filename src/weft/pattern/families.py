"""The library, fifth part: the masks of particular models, named as their papers name them.

As in `weft.pattern.library`, one function each; see there.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from weft.errors import PatternError
from weft.pattern.algebra import Align, Pattern, text
from weft.pattern.arguments import LARGEST, axes, flags, integer, integers, library
from weft.pattern.bounds import Stair
from weft.pattern.composites import neighbors
from weft.pattern.leaves import Affine, Product, Segments
from weft.pattern.library import NOTHING, affine, diagonal
from weft.pattern.pieces import Coarse
from weft.pattern.relation import Relation, Residue
from weft.pattern.tables import of_blocks

FULL = Affine(Relation())


# ---- language --------------------------------------------------------------------------------------------------------
@library
def block_diffusion(tokens: int, block: int) -> Pattern:
    """Block diffusion's training mask over [noisy tokens | clean tokens]: M == N == 2 * tokens.

    With blocks of `block` tokens counted in each half, a noisy query sees its own noisy block and the clean blocks
    before it. A clean query sees the clean blocks up to its own. Source: Arriola et al. 2025, arXiv 2503.09573.
    """
    tokens, block = integer("block_diffusion", "tokens", tokens, 0), integer("block_diffusion", "block", block, 1)
    first, after = Stair(block, block), Stair(block, block, base=block)
    own, before, upto = Relation((first,), (after,)), Relation(upper=(first,)), Relation(upper=(after,))
    cells = ((Affine(own), Affine(before)), (Affine(NOTHING), Affine(upto)))
    return Segments((tokens, tokens), (tokens, tokens), cells)


@library
def shared_prefix(lengths: Any, prefixes: Any = None) -> Pattern:
    """Causal packed documents that continue others: document i sees itself and document prefixes[i], if that is another
    one. M == N == sum(lengths).

    prefixes[i] <= i; a document that continues none names itself. Without prefixes all continue the first: one prompt
    with several answers. Sources: Juravsky et al. 2024, arXiv 2402.05099; the share-question mask of FlashMask, Wang et
    al. 2024, arXiv 2410.01359.
    """
    sizes = integers("shared_prefix", "lengths", lengths).array
    number = np.arange(sizes.size)
    of = np.zeros_like(number) if prefixes is None else integers("shared_prefix", "prefixes", prefixes).array
    if of.size != sizes.size or (of > number).any():
        late = np.flatnonzero(of[: sizes.size] > number[: of.size])
        wrong = (
            f"document {late[0]} continues document {of[late[0]]}, which comes after it" if late.size
            else f"{of.size} prefixes are given for {sizes.size} documents"
        )  # fmt: skip
        raise PatternError(
            f"shared_prefix({text(lengths)}, {text(prefixes)})", wrong,
            "give each document the number of one that is not after it, its own for none",
        )  # fmt: skip
    table = np.eye(sizes.size, dtype=np.bool_)
    table[number, of] = True
    return of_blocks(sizes, sizes, table) & affine("shared_prefix", "top-left", Relation(upper=(diagonal(1),)))


@library
def streaming_chunks(chunk: int, left: int | None = None, align: Align = None) -> Pattern:
    """q's chunk of `chunk` tokens and the `left` chunks before it, all of these where left is None.

    A streaming encoder reads its input chunk by chunk with so much left context. Source: Zhang et al. 2020, arXiv
    2012.05481 (dynamic chunk training, U2).
    """
    chunk = integer("streaming_chunks", "chunk", chunk, 1)
    upper = Stair(chunk, chunk, base=chunk)
    if left is None:
        return affine("streaming_chunks", align, Relation(upper=(upper,)))
    back = integer("streaming_chunks", "left", left, 0, "use None for all chunks before it") * chunk
    return affine("streaming_chunks", align, Relation((Stair(chunk, chunk, base=-back),), (upper,)))


# ---- images and video ------------------------------------------------------------------------------------------------
@library
def sliding_tile(shape: Any, tile: Any, window: Any, text: int = 0) -> Pattern:
    """Sliding tile attention on a grid of 1 to 3 axes whose tokens come tile by tile, and `text` tokens after them.

    A query sees all tokens of the tiles in a window of `window` tiles an axis around its own. At a border the window is
    pushed inwards. Text sees everything, and is seen by all. M == N == prod(shape) + text. tile divides shape. Source:
    Zhang et al. 2025, arXiv 2502.04507.
    """
    rank = 1 if isinstance(shape, int) else len(shape)
    if rank not in (1, 2, 3):
        raise PatternError(f"sliding_tile(shape={shape!r})", "a grid has 1, 2 or 3 axes", "pass e.g. shape=(48, 80)")
    given = (("shape", shape), ("tile", tile), ("window", window))
    sizes, tiles, windows = (axes("sliding_tile", name, value, rank, 1) for name, value in given)
    if any(size % side for size, side in zip(sizes, tiles, strict=True)):
        raise PatternError(
            f"sliding_tile(shape={sizes}, tile={tiles})", "tiles do not fill the grid", "pass a tile that divides shape"
        )
    counts = tuple(size // side for size, side in zip(sizes, tiles, strict=True))
    each = zip(counts, windows, strict=True)
    asked = f"sliding_tile(shape={sizes}, tile={tiles}, window={windows})"
    parts = [Affine(neighbors(asked, *one, 1, 1, causal=False)) for one in each]
    grid = (*counts, prod(tiles))
    return _beside(Product((*parts, FULL), grid, grid), prod(sizes), integer("sliding_tile", "text", text, 0))


def _beside(video: Pattern, tokens: int, text: int, *, first: bool = False) -> Pattern:
    """A pattern of `tokens` tokens with text tokens after them, or before them (`first`), that see and are seen."""
    if not text:
        return video
    sizes, place = ((text, tokens), 1) if first else ((tokens, text), 0)
    alone = tuple(tuple(video if (i, j) == (place, place) else Affine(NOTHING) for j in (0, 1)) for i in (0, 1))
    begin = 0 if first else tokens
    beside = [Affine(Relation.span(begin, begin + text, of_rows)) for of_rows in (True, False)]
    return Segments(sizes, sizes, alone) | beside[0] | beside[1]


@library
def svg_spatial(frame: int, width: int = 2, prompt: int = 0, sink: bool = False, align: Align = None) -> Pattern:
    """Sparse VideoGen's spatial head: |q - k| < width * frame, or q or k among the first `prompt` tokens. With `sink`
    also k in the first frame after them.

    frame: tokens of a frame. Source: Xi et al. 2025, arXiv 2502.01776.
    """
    frame, width = integer("svg_spatial", "frame", frame, 1), integer("svg_spatial", "width", width, 0)
    prompt = integer("svg_spatial", "prompt", prompt, 0)
    (sink,) = flags("svg_spatial", "sink", sink, 1)
    reach = frame * width
    found = affine("svg_spatial", align, Relation((diagonal(1 - reach),), (diagonal(reach),)))
    seen = prompt + frame * sink
    parts = [found]
    if prompt:
        parts.append(affine("svg_spatial", align, Relation.span(0, prompt, of_rows=True)))
    if seen:
        parts.append(Affine(Relation.span(0, min(seen, LARGEST), of_rows=False)))
    whole: Pattern = parts[0]
    for part in parts[1:]:
        whole = whole | part
    return whole


@library
def svg_temporal(frame: int, frames: int, width: int = 2, prompt: int = 0) -> Pattern:
    """Sparse VideoGen's temporal head: places in the frame less than width * frame // frames apart, in any two frames.
    Or q or k are among the first `prompt` tokens. M == N == prompt + frames * frame.

    Source: Xi et al. 2025, arXiv 2502.01776.
    """
    frame, frames = integer("svg_temporal", "frame", frame, 1), integer("svg_temporal", "frames", frames, 1)
    width, prompt = integer("svg_temporal", "width", width, 0), integer("svg_temporal", "prompt", prompt, 0)
    reach = width * frame // frames
    near = Relation((diagonal(1 - reach),), (diagonal(reach),))
    grid = (frames, frame)
    return _beside(Product((FULL, Affine(near)), grid, grid), frames * frame, prompt, first=True)


@library
def radial(frames: int, frame: int, sink: bool = False) -> Pattern:
    """Radial attention: in two frames d apart, places l and m with |l - m| + 1 <= frame / 2**floor(log2(max(d, 1))).

    Where that is less than 1, the same place in every so many frames, ceil(2**floor(log2(d)) / frame). With `sink` all
    see the first frame. M == N == frames * frame. Source: Li et al. 2025, arXiv 2506.19852.
    """
    frames, frame = integer("radial", "frames", frames, 1), integer("radial", "frame", frame, 1)
    (sink,) = flags("radial", "sink", sink, 1)
    grid = (frames, frame)
    found: Pattern = Product((Affine(Relation((diagonal(-1),), (diagonal(2),))), FULL), grid, grid)
    for octave in range(1, (frames - 1).bit_length()):
        near, reach = 1 << octave, max(frame >> octave, 1)
        place = Affine(Relation((diagonal(1 - reach),), (diagonal(reach),)))
        step = Residue(-(-near // frame))
        for first, after in ((near, 2 * near), (1 - 2 * near, 1 - near)):
            apart = Affine(Relation((diagonal(first),), (diagonal(after),), diagonal=step))
            found = found | Product((apart, place), grid, grid)
    if not sink:
        return found
    return found | Product((Affine(Relation.span(0, 1, of_rows=False)), FULL), grid, grid)


@library
def rotating_anchors(frame: int, window: int, every: int, turn: int = 0, align: Align = None) -> Pattern:
    """Frames i = q // frame and j = k // frame with |i - j| <= window, or j % every == turn % every. So there are a
    window of frames, and anchor frames that every query sees.

    `turn` rotates the anchors: the head, the layer or the denoising step (`per_head` gives each head its own). After:
    Glorian et al. 2026, arXiv 2605.31057 (window and rotating global anchors).
    """
    frame, window = integer("rotating_anchors", "frame", frame, 1), integer("rotating_anchors", "window", window, 0)
    every, turn = integer("rotating_anchors", "every", every, 1), integer("rotating_anchors", "turn", turn, 0)
    back = window * frame
    band = Relation((Stair(frame, frame, base=-back),), (Stair(frame, frame, base=back + frame),))
    anchors = Coarse(Affine(Relation(keys=Residue(every, turn))), frame, frame)
    return affine("rotating_anchors", align, band) | anchors
