"""Padding given by lengths or by a boolean mask of tokens."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any

import numpy as np

from weft.errors import PatternError
from weft.pattern import crossing
from weft.pattern.algebra import Align, Pattern
from weft.pattern.arguments import flags
from weft.pattern.composites import per_batch
from weft.pattern.library import global_tokens
from weft.pattern.library import padding as by_lengths
from weft.pattern.relation import NDBool

MOST_SPANS = 4  # of live tokens in a row that bounds say; more are listed token by token


def padding(lengths: Any = None, rows: bool = False, align: Align = None, *, mask: Any = None) -> Pattern:
    """k < lengths[b] in batch row b; with rows=True also q < lengths[b]. An int serves every batch row. Without rows
    the alignment is what distances (ALiBi) are counted by.

    Or mask: booleans (B, S), numpy or torch, True for a token. Padding lies on the left, on the right, or in holes. Key
    k is seen where mask[b, k]; with rows=True, by queries where mask[b, q]. It becomes an expression of other patterns,
    and keeps what the mask says now. Example, of a tokenizer's mask of 0 and 1::

        weft.causal() & weft.padding(mask=attention_mask.bool())
    """
    if (lengths is None) == (mask is None):
        given = "lengths, mask" if mask is not None else ""
        raise PatternError(
            f"padding({given})", "it takes lengths or a mask, one of them",
            "pass padding([n0, n1, ...]), one length for each batch row, or padding(mask=booleans)",
        )  # fmt: skip
    if mask is None:
        return by_lengths(lengths, rows, align)
    (both,) = flags("padding", "rows", rows, 1)
    return _of_mask(_booleans(mask), both, align)


def hidden(spans: tuple[tuple[tuple[int, int], ...], ...]) -> Pattern:
    """All keys but those of a few runs; spans: of each batch row its runs, pairs (first, after)."""
    most = max(map(len, spans))
    runs = [[row[i] if i < len(row) else (0, 0) for row in spans] for i in range(most)]
    return ~reduce(or_, [_between(one, None) for one in runs])


def _booleans(mask: Any) -> NDBool:
    """The mask as a numpy array (B, S)."""
    asked = f"padding(mask={type(mask).__name__})"
    if crossing.tracing():
        cure = "make the pattern outside of it and pass that, or pass padding(lengths)"
        raise PatternError(asked + " inside a compiled function", "a graph cannot read what a mask says", cure)
    if hasattr(mask, "detach") and hasattr(mask, "cpu"):
        if str(mask.dtype) != "torch.bool":
            raise _not_boolean(asked, mask.dtype)
        mask = mask.detach().cpu().numpy()
    if not isinstance(mask, np.ndarray):
        raise PatternError(asked, "it is neither a numpy array nor a torch tensor", "pass booleans of shape (B, S)")
    if mask.dtype != np.bool_:
        raise _not_boolean(asked, mask.dtype)
    if mask.ndim != 2 or not mask.shape[0]:
        cure = "pass (B, S), one row for each batch row; mask[:, 0, 0] of (B, 1, 1, S)"
        raise PatternError(f"padding(mask={mask.shape})", "it is not (B, S)", cure)
    return mask


def _not_boolean(asked: str, dtype: Any) -> PatternError:
    cure = "pass booleans, True for a token: mask.bool() of 1 and 0, ~mask where True is padding"
    return PatternError(asked, f"its dtype is {dtype}, and what a number means is not known", cure)


def _of_mask(mask: NDBool, rows: bool, align: Align) -> Pattern:
    if few_runs(mask):
        spans = [_spans(row) for row in mask]
        most = max(1, *map(len, spans))
        keys = reduce(
            or_, [_between([row[i] if i < len(row) else (0, 0) for row in spans], align) for i in range(most)]
        )
    else:
        keys = per_batch([_listed(row, align) for row in mask])
    if not rows:
        return keys
    return keys & per_batch([global_tokens(np.flatnonzero(row), columns=False, align=align) for row in mask])


def few_runs(mask: NDBool) -> bool:
    """Whether bounds say a mask (B, S): no row has more runs of tokens, or of what is none."""
    changes = (mask[:, 1:] != mask[:, :-1]).sum(1, initial=0)
    return not mask.shape[1] or bool((changes + mask[:, 0] <= 2 * MOST_SPANS).all())


def _spans(row: NDBool) -> list[tuple[int, int]]:
    """(first live token, first dead one after it) of every run."""
    edges = np.flatnonzero(np.diff(row.astype(np.int8), prepend=0, append=0)).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


def _between(spans: list[tuple[int, int]], align: Align) -> Pattern:
    """first <= k < after, with a span for each batch row."""
    before = by_lengths([after for _, after in spans], align=align)
    return before & ~by_lengths([first for first, _ in spans]) if any(first for first, _ in spans) else before


def _listed(row: NDBool, align: Align) -> Pattern:
    """The live tokens of one row, or all up to the last but the dead ones: the shorter list."""
    live = np.flatnonzero(row)
    length = int(live[-1]) + 1 if live.size else 0
    if live.size <= length // 2:
        return global_tokens(live, rows=False)
    return by_lengths(length, align=align) & ~global_tokens(np.flatnonzero(~row[:length]), rows=False)
