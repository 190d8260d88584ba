"""The patterns that the demo runs, each with a small instance of itself to be drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from math import isqrt
from typing import Any

import torch

import weft
from weft.pattern.algebra import Pattern

DRAWN_TEXT, DRAWN_MAP = 512, 24  # tokens, and rows and columns, of the pictures


@dataclass(frozen=True)
class Case:
    """A pattern by name; `on` is "text" or "map"; `small` is drawn at `drawn` tokens."""

    name: str
    on: str
    pattern: Pattern
    small: Pattern
    drawn: int


def cases(lengths: tuple[int, ...], side: int) -> list[Case]:
    """Patterns for packed documents of these lengths, and for a map of side x side pixels."""
    text = [*_on_text(lengths), *([_recognized(lengths)] if has_transformers() else [])]
    return [*text, *_on_map(side)]


def has_transformers() -> bool:
    """Whether Hugging Face transformers is here, whose mask functions are one case."""
    return find_spec("transformers") is not None


def _recognized(lengths: tuple[int, ...]) -> Case:
    """A sliding window in packed documents, as transformers builds it for its models: a function, recognised."""
    near = max(16, sum(lengths) // 64)
    pattern, small = (
        weft.recognize(packed_window(sizes, window)).pattern
        for sizes, window in ((lengths, near), (scaled(lengths, DRAWN_TEXT), 64))
    )
    return Case("transformers", "text", pattern, small, DRAWN_TEXT)


def packed_window(lengths: Sequence[int], window: int) -> Callable[..., Any]:
    """transformers' own mask function of (b, h, q, k) for documents of these lengths, packed into one sequence."""
    from transformers import masking_utils as masks

    sizes = torch.tensor(lengths)
    document = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
    inside = masks.packed_sequence_mask_function(document[None])
    return masks.and_masks(masks.sliding_window_causal_mask_function(window), inside)


def _on_text(lengths: tuple[int, ...]) -> list[Case]:
    m = sum(lengths)
    near, root = max(16, m // 64), isqrt(m)
    causal = weft.causal()
    found = [
        ("window", causal & weft.window(left=near - 1), causal & weft.window(left=127)),
        ("dilated", weft.dilated(near - 1, 0, step=8), weft.dilated(63, 0, step=4)),
        ("strided", weft.strided(root), weft.strided(32)),
        ("longformer", weft.longformer(near, global_tokens=16), weft.longformer(128, global_tokens=16)),
        ("documents", causal & weft.documents(lengths), causal & weft.documents(scaled(lengths, DRAWN_TEXT))),
    ]
    return [Case(name, "text", pattern, small, DRAWN_TEXT) for name, pattern, small in found]


def _on_map(side: int) -> list[Case]:
    found = {
        "neighbors 7x7": {"size": 7},
        "neighbors dilated": {"size": 7, "dilation": 2},
        "neighbors strided": {"size": 8, "stride": 4},
    }
    return [
        Case(name, "map", weft.neighborhood((side, side), **how), weft.neighborhood((DRAWN_MAP, DRAWN_MAP), **how),
             DRAWN_MAP**2)
        for name, how in found.items()
    ]  # fmt: skip


def scaled(lengths: tuple[int, ...], total: int) -> list[int]:
    """The same shares of another total."""
    ends = [round(sum(lengths[: i + 1]) * total / sum(lengths)) for i in range(len(lengths))]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]
