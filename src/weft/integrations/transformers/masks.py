"""Mask functions of transformers as patterns, found again by what they say.

transformers describes a mask by a function on positions of the sequence, offsets, and a boolean mask of padding. The
function is recognised once; offsets become alignments, so that all steps of decoding share one pattern. No pair is
evaluated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor
from torch.compiler import is_compiling
from transformers.masking_utils import causal_mask_function

from weft.acsr.placed import placed, within_causal
from weft.caching import cached
from weft.errors import UnsupportedError, WeftError
from weft.integrations.transformers.graphs import counted, in_graph
from weft.integrations.transformers.held import Mask
from weft.integrations.transformers.packed import packed
from weft.integrations.transformers.reading import Seen, read
from weft.integrations.transformers.tables import from_tables
from weft.pattern.algebra import Pattern
from weft.pattern.padded import few_runs, hidden, padding
from weft.torch.decode import MOST_QUERIES
from weft.torch.masks import recognized


def mask(batch_size: int, q_length: int, kv_length: int, q_offset: Any = 0, kv_offset: int = 0, **told: Any) -> Mask:
    """What transformers registers as a mask function: see `transformers.masking_utils.sdpa_mask` for the arguments.

    Raises weft's errors for a function that is not recognised; they name the model.
    """
    try:
        found = _mask((batch_size, q_length, kv_length), (q_offset, kv_offset), told)
    except WeftError as error:
        model = getattr(told.get("config"), "model_type", "model")
        raise type(error)(f"attn_implementation='weft' in {model}: {error.asked}", error.wrong, error.cure) from error
    if not is_compiling():  # a graph that ends here could not hand on a function
        found.of_rows = lambda first, count: mask(batch_size, count, kv_length, q_offset + first, kv_offset, **told)
    return found


def _mask(sizes: tuple[int, int, int], offsets: tuple[Any, int], told: dict[str, Any]) -> Mask:
    function, tokens = told.get("mask_function", causal_mask_function), told.get("attention_mask")
    q_offset, kv_offset = offsets
    if is_compiling() and not isinstance(q_offset, Tensor):
        return in_graph(sizes, offsets, function, tokens)
    # transformers allows no skip at a step of a cache that is to be compiled
    if isinstance(q_offset, Tensor) or (sizes[1] == 1 and not told.get("allow_is_causal_skip", True)):
        found = _counted(sizes, offsets, (function, tokens), told.get("device", "cpu"))
        if found is not None:
            return found
    return _made(sizes, (int(q_offset), kv_offset), function, tokens)


def _counted(
    sizes: tuple[int, int, int], offsets: tuple[Any, int], said: tuple[Callable[..., Any], Tensor | None], device: Any
) -> Mask | None:
    """The mask as numbers on the device; None where it must be said otherwise, which reads the offset on the host."""
    if is_compiling():
        found = counted(sizes, offsets, said, device)
        if found is None:
            raise UnsupportedError(
                "a mask whose offset the device alone knows, inside a compiled function",
                "it is more than causal, with a window, chunks and padding on the left",
                "make the mask outside of it, as generate() does, or take a dynamic cache",
            )  # fmt: skip
        return found
    try:
        return counted(sizes, offsets, said, device) if sizes[1] <= MOST_QUERIES else None
    except (UnsupportedError, TypeError, AttributeError):  # a function of the user's that is recognised alone
        return None


def _made(
    sizes: tuple[int, int, int], offsets: tuple[int, int], function: Callable[..., Any], mask: Tensor | None
) -> Mask:
    (batch, m, n), (q_offset, k_offset) = sizes, offsets
    seen = _seen(function)
    if seen is not None and mask is None:
        documents = packed(sizes, offsets, seen, lambda: _tabled(sizes, offsets, seen))
        if documents is not None:
            return Mask(None, sizes, offsets, None, documents)
    found = None if seen is None else from_tables(sizes, offsets, seen)
    if found is None:
        said = recognized(function, (batch, 1, q_offset + m, k_offset + n), "a mask function").pattern
        come = q_offset + m - k_offset  # keys that have come: the later places of a static cache are empty
        live = come if come < n and within_causal(said) else n
        found = placed(said, (m, live), offsets), live
    pattern, live = found
    tokens = None if mask is None else unpadded(mask, k_offset, live)
    if tokens is not None:
        pattern = _joined(pattern, tokens)
    return Mask(pattern, sizes, offsets, live if live < n else None)


def _tabled(sizes: tuple[int, int, int], offsets: tuple[int, int], seen: Seen) -> Pattern:
    found = from_tables(sizes, offsets, seen)
    assert found is not None  # documents are told apart by a table
    return found[0]


def _seen(function: Callable[..., Any]) -> Seen | None:
    """What a function says, None where it does what only recognition follows."""
    try:
        return read(function)
    except (UnsupportedError, TypeError, AttributeError):  # of a function that meets the objects of `read`
        return None


@cached(256)
def _joined(pattern: Pattern, tokens: Pattern) -> Pattern:
    return pattern & tokens


def unpadded(mask: Tensor, first: int, keys: int) -> Pattern | None:
    """Those of `keys` keys from `first` on that are no padding; None where all are.

    mask: booleans (B, S), True for a token; keys beyond S are padding.
    """
    rows = mask.detach().cpu().numpy()[:, first : first + keys]
    if rows.shape[1] == keys and rows.all():
        return None
    if few_runs(rows):
        return _hidden(tuple(_runs(row, keys) for row in rows))
    full = np.zeros((rows.shape[0], keys), np.bool_)
    full[:, : rows.shape[1]] = rows
    return padding(mask=full)


@cached(256)
def _hidden(runs: tuple[tuple[tuple[int, int], ...], ...]) -> Pattern:
    """One object for as long as the runs are the same: those on the left are, at all steps of decoding."""
    return hidden(runs)


def _runs(row: np.ndarray, keys: int) -> tuple[tuple[int, int], ...]:
    """Where a row is False, as runs."""
    first = int(row.argmax()) if row.size else 0
    if row.size == keys and row[first:].all():  # padded on the left, as generation is
        return ((0, first),) if first else ()
    dead = np.ones(keys, np.bool_)
    dead[: row.size] = ~row
    edges = np.flatnonzero(np.diff(dead.view(np.int8), prepend=0, append=0)).tolist()
    return tuple(zip(edges[::2], edges[1::2], strict=True))
