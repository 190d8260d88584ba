"""Mask functions of the kinds that users of FlexAttention write, from their definitions: name -> Given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

torch = __import__("pytest").importorskip("torch")

DOCUMENTS = [5, 17, 1, 30, 11]  # 64 tokens


@dataclass(frozen=True)
class Given:
    """A function of (b, h, q, k) or (q, k), and where it is compared with itself."""

    function: Callable[..., Any]
    size: tuple[int, int] = (64, 64)
    batch: int = 1
    heads: int = 1


def causal(b, h, q, k):
    return q >= k


def sliding_window(size):
    def window(b, h, q, k):
        return (q >= k) & (q - k <= size)

    return window


def dilated_window(size, step):
    def dilated(b, h, q, k):
        distance = torch.abs(q - k)
        return (distance <= size) & (distance % step == 0)

    return dilated


def prefix_lm(lengths):
    def prefix(b, h, q, k):
        return (k < lengths[b]) | (q >= k)

    return prefix


def global_and_sliding(tokens, size):
    def mask(b, h, q, k):
        return (q < tokens) | (k < tokens) | ((q - k).abs() <= size)

    return mask


def of_offsets(offsets):
    """A document number for each token."""
    return torch.repeat_interleave(torch.arange(len(offsets) - 1), offsets[1:] - offsets[:-1])


def in_documents(inner, offsets):
    """`inner` on positions counted from the beginning of the document."""
    document = of_offsets(offsets)

    def mask(b, h, q, k):
        inside = document[q] == document[k]
        return inside & inner(b, h, q - offsets[document[q]], k - offsets[document[k]])

    return mask


def searched_documents(offsets):
    """Documents found in their offsets, without a number for each token."""

    def mask(b, h, q, k):
        return torch.searchsorted(offsets, q, right=True) == torch.searchsorted(offsets, k, right=True)

    return mask


def neighborhood_2d(height, width, kernel):
    """Windows of kernel x kernel, pushed inwards at the border."""
    half = kernel // 2

    def mask(b, h, q, k):
        row, column = q // width, q % width
        middle = row.clamp(half, height - 1 - half), column.clamp(half, width - 1 - half)
        return ((middle[0] - k // width).abs() <= half) & ((middle[1] - k % width).abs() <= half)

    return mask


def cut_neighborhood_2d(width, kernel):
    """Windows of kernel x kernel, cut at the border; any number of rows."""

    def mask(q, k):
        return (abs(q // width - k // width) <= kernel // 2) & (abs(q % width - k % width) <= kernel // 2)

    return mask


def neighborhood_3d(shape, kernel):
    sizes = (shape[1] * shape[2], shape[2], 1)

    def mask(q, k):
        live = q.new_ones((), dtype=torch.bool)
        for extent, size in zip(shape, sizes, strict=True):
            at = torch.clamp(q // size % extent, kernel // 2, extent - 1 - kernel // 2)
            live = live & (torch.abs(at - k // size % extent) <= kernel // 2)
        return live

    return mask


def sliding_tile(canvas, tile, window):
    """Tokens in the order of tiles; a tile sees the tiles within a window around it, pushed inwards."""
    tokens, tiles = tile * tile, canvas // tile

    def mask(b, h, q, k):
        tile_q, tile_k = q // tokens, k // tokens
        row = torch.clamp(tile_q // tiles, window // 2, tiles - 1 - window // 2)
        column = torch.clamp(tile_q % tiles, window // 2, tiles - 1 - window // 2)
        return ((row - tile_k // tiles).abs() <= window // 2) & ((column - tile_k % tiles).abs() <= window // 2)

    return mask


def share_question(groups):
    """Causal; group 0 is the question, which every answer sees, and answers do not see each other."""

    def mask(b, h, q, k):
        return (q >= k) & ((groups[k] == 0) | (groups[q] == groups[k]))

    return mask


def per_head_window(sizes):
    def mask(b, h, q, k):
        return (q >= k) & (q - k < sizes[h])

    return mask


def strided(stride):
    def mask(q, k):
        return (k <= q) & ((q - k < stride) | ((q - k) % stride == 0))

    return mask


def fixed(stride, summary):
    def mask(q, k):
        return (k <= q) & ((q // stride == k // stride) | (k % stride >= stride - summary))

    return mask


def alternating(size):
    """Even heads see a window, odd heads chunks."""

    def mask(b, h, q, k):
        return torch.where(h % 2 == 0, (q - k < size) & (q >= k), q // size == k // size)

    return mask


def images_in_text(spans):
    """Causal text with images whose tokens see each other in both directions."""

    def mask(b, h, q, k):
        live = q >= k
        for first, stop in spans:
            live = live | ((q >= first) & (q < stop) & (k >= first) & (k < stop))
        return live

    return mask


def with_numpy(ids):
    def mask(q, k):
        return np.logical_and(ids[q] == ids[k], np.greater_equal(q, k))

    return mask


def layout_of_blocks(layout, block):
    """A table of blocks for each head."""

    def mask(b, h, q, k):
        return layout[h, q // block, k // block] & (k <= q)

    return mask


OFFSETS = torch.tensor(np.cumsum([0, *DOCUMENTS]))
PADDING = torch.ones(3, 64, dtype=torch.bool)
PADDING[1, :7], PADDING[2, 50:] = False, False
LAYOUT = torch.stack([torch.ones(4, 4).tril(1), torch.eye(4), torch.tensor(np.indices((4, 4)).sum(0) % 3 == 0)]).bool()

GIVEN = {
    "causal": Given(causal),
    "sliding window": Given(sliding_window(9)),
    "dilated window": Given(dilated_window(12, 3)),
    "prefix-LM": Given(prefix_lm(torch.tensor([7, 20])), batch=2),
    "global and sliding": Given(global_and_sliding(4, 5)),
    "documents": Given(in_documents(lambda b, h, q, k: q >= 0, OFFSETS)),
    "causal documents": Given(in_documents(causal, OFFSETS)),
    "window in documents": Given(in_documents(sliding_window(4), OFFSETS)),
    "dilated in documents": Given(in_documents(dilated_window(6, 2), OFFSETS)),
    "prefix-LM in documents": Given(in_documents(prefix_lm(torch.tensor([3])), OFFSETS)),
    "searched documents": Given(searched_documents(OFFSETS)),
    "2-D neighborhood": Given(neighborhood_2d(8, 8, 5)),
    "2-D neighborhood, unlike sides": Given(neighborhood_2d(4, 16, 3)),
    "2-D neighborhood, cut": Given(cut_neighborhood_2d(8, 5)),
    "3-D neighborhood": Given(neighborhood_3d((4, 4, 6), 3), (96, 96)),
    "sliding tile": Given(sliding_tile(12, 3, 3), (144, 144)),
    "share question": Given(share_question(torch.tensor([0] * 20 + [1] * 15 + [2] * 20 + [3] * 9))),
    "window per head": Given(per_head_window(torch.tensor([3, 9, 30])), heads=3),
    "strided": Given(strided(8)),
    "fixed": Given(fixed(8, 2)),
    "alternating heads": Given(alternating(8), heads=4),
    "images in text": Given(images_in_text([(5, 20), (40, 50)])),
    "a list for each head": Given(lambda b, h, q, k: q - k < [3, 9][h] if h < 2 else k <= q, heads=3),
    "padding": Given(lambda b, h, q, k: PADDING[b, k], batch=3),
    "padded queries and keys": Given(lambda b, h, q, k: PADDING[b, q] & PADDING[b, k] & (k <= q), batch=3),
    "numpy": Given(with_numpy(np.repeat(np.arange(5), DOCUMENTS))),
    "layouts of blocks": Given(layout_of_blocks(LAYOUT, 16), heads=3),
    "ragged layouts of blocks": Given(layout_of_blocks(LAYOUT, 16), (50, 60), heads=3),
    "rectangle": Given(lambda q, k: k <= q + 16, (48, 64)),
}
TRIANGLE = torch.ones(30, 30, dtype=torch.bool).tril()
# Without a closed form, or not one that is looked for: these are evaluated.
OTHERS = {
    "a branch": Given(lambda q, k: (k <= q) if q % 2 else (k == q), (30, 30)),
    "chained": Given(lambda q, k: 0 <= q - k < 5, (30, 30)),
    "a product": Given(lambda q, k: (q * k) % 3 == 0, (30, 30)),
    "a table of pairs": Given(lambda q, k: TRIANGLE[q, k], (30, 30)),
    "floats": Given(lambda q, k: k <= q * 0.5, (30, 30)),
}
