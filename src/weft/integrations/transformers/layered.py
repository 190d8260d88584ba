"""The pattern that a configuration names for a layer, at the queries and keys of a call."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.compiler import is_compiling

from weft.acsr.placed import last_rows, placed, realigned
from weft.errors import UnsupportedError
from weft.pattern.algebra import Pattern
from weft.pattern.library import causal
from weft.pattern.parse import parse

KEY = "weft_patterns"  # of a configuration: {"0": "causal() & window(left=1023)", ...}


class Layered(NamedTuple):
    """A pattern that a configuration names.

    text: its spelling. whole: of the tokens of a sequence. last: of the last of them, from the first key on; moved:
    from any key on; None where these depend on lengths.
    """

    text: str
    whole: Pattern
    last: Pattern | None
    moved: Pattern | None

    def step(self, first: bool) -> str | None:
        """The text of what a step of decoding sees, whose last query is beside the last key; first: from key 0 on."""
        found = self.last if first else self.moved
        return None if found is None else _texts[found]


_known: dict[str, Layered] = {}
_texts: dict[Pattern, str] = {}


def load_patterns(model: torch.nn.Module) -> None:
    """Read the patterns that a model's configuration names; torch.compile needs that before a model was called."""
    for text in (getattr(model.config.get_text_config(), KEY, None) or {}).values():
        read(text)


def pattern_of(module: torch.nn.Module) -> Layered | None:
    """The pattern of the layer that a module of attention belongs to."""
    kept = getattr(getattr(module, "config", None), KEY, None)
    if not kept:
        return None
    text = kept.get(str(getattr(module, "layer_idx", None)))
    if text is None:
        return None
    if text not in _known:
        if is_compiling():
            raise UnsupportedError(
                "a pattern of the configuration inside a compiled function", "a graph cannot read its text",
                "call weft.integrations.transformers.load_patterns(model) before the model is compiled",
            )  # fmt: skip
        read(text)
    return _known[text]


def seen_by(layered: Layered, sizes: tuple[int, int], offsets: tuple[int, int]) -> Any:
    """What the pattern says of the queries and keys of a call, as `placed` does, also in a graph."""
    if not is_compiling():
        return placed(layered.whole, sizes, offsets)
    (m, n), (q_offset, k_offset) = sizes, offsets
    if q_offset == 0 and k_offset == 0 and m == n:
        return layered.whole
    found = layered.last if k_offset == 0 else layered.moved
    if found is None or n - m != q_offset - k_offset:
        raise UnsupportedError(
            f"the pattern {layered.text} inside a compiled function", "at these lengths it is another one each time",
            "compile the model without a cache, or take a pattern of distances",
        )  # fmt: skip
    return found


def read(text: str) -> None:
    """Make a text known."""
    if text not in _known:
        pattern = parse(text)
        last, moved = (last_rows(pattern, first) for first in (True, False))
        for one in (last, moved):
            if one is not None:
                _texts[one] = (one & causal(align="bottom-right")).written(whole=True)
        _known[text] = Layered(text, realigned(pattern, "top-left"), last, moved)
