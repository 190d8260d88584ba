"""Packed documents on a GPU: their lengths lie there as running sums, so that other documents need no other plan.

Documents of training differ at every step. Planned by their lengths they cost the host as long as many layers run.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import weft
from weft.caching import cached
from weft.integrations.transformers.reading import Seen, leaves
from weft.pattern.algebra import Pattern
from weft.torch.call import autocast
from weft.torch.eager import is_plain, is_watched
from weft.torch.varlen import varlen_attention

FEWEST = 16  # documents and tokens that shapes are made for; beyond, the next power of two
OPTIONS = {"scale": None, "softcap": None, "backend": "auto"}
Limits = tuple[tuple[int | None, int | None], ...]


class Packed(NamedTuple):
    """Documents of all batch rows, one after the other.

    sums: of their lengths, (documents + 1,) in int32; the last documents may be empty. seen: of each document. longest:
    no document has more tokens. whole: makes the pattern of all batch rows, with lengths. tables: of kernels, made by
    the first layer.
    """

    sums: Tensor
    seen: Pattern
    longest: int
    whole: Callable[[], Pattern]
    tables: dict[Hashable, list[Tensor]]

    def attend(self, tensors: tuple[Tensor, Tensor, Tensor], sinks: Tensor | None = None, **options: Any) -> Any:
        """(B, N, Hq, Dv), as `weft.attention` of q (B, Hq, N, D), k and v under `whole()` transposed."""
        if sinks is None and self.sums.is_cuda:
            return self._at_once(tensors, **options)
        batch, _, tokens, _ = tensors[0].shape
        q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in tensors)
        given: dict[str, Any] = {**options, "sinks": sinks, "max_seqlen_q": self.longest, "max_seqlen_k": self.longest}
        return varlen_attention(q, k, v, self.sums, None, self.seen, **given).unflatten(0, (batch, tokens))

    def _at_once(self, tensors: tuple[Tensor, Tensor, Tensor], **options: Any) -> Tensor:
        """By kernels that read batch rows as they lie, and share tables with other layers."""
        from weft.torch import device_documents  # it imports Triton

        deterministic = torch.are_deterministic_algorithms_enabled()
        chosen = device_documents.Chosen(**OPTIONS | options, deterministic=deterministic)
        sums = device_documents.Sums(self.sums, self.sums, True, (self.longest, self.longest))
        out, _ = device_documents.attention(autocast(*tensors), sums, self.seen, (None, None), chosen, self.tables)
        return out


def serves(tensors: tuple[Tensor, Tensor, Tensor]) -> bool:
    """Whether nobody looks at operators, which kernels on running sums are none of."""
    return not is_watched() and all(map(is_plain, tensors))


def packed(
    sizes: tuple[int, int, int], offsets: tuple[int, int], seen: Seen, whole: Callable[[], Pattern]
) -> Packed | None:
    """The documents that a mask function tells apart on a GPU; None where it tells apart more, or others."""
    parts = leaves(seen)
    labels, limits = ([part for part in parts if part.kind == kind] for kind in ("same", "near"))
    batch, m, n = sizes
    if len(labels) != 1 or len(labels) + len(limits) < len(parts) or (m, offsets) != (n, (0, 0)):
        return None
    ids, of_keys = labels[0].parts
    if ids is not of_keys or ids.shape != (batch, n) or not _on_gpu(ids):
        return None
    sums = _running_sums(ids.cpu().numpy())
    if sums is None:
        return None
    longest = min(_rounded(int(np.diff(sums).max())), n)
    pattern = _within(tuple((part.parts[0], part.parts[1]) for part in limits))
    return Packed(torch.from_numpy(sums).to(ids.device), pattern, longest, whole, {})


def _on_gpu(ids: Tensor) -> bool:
    return ids.is_cuda


def _running_sums(ids: Any) -> Any:
    """Of the lengths of runs of one number in each row, and empty ones after them; None where a number comes again."""
    grown = np.diff(ids, axis=1)
    if (grown < 0).any():
        return None
    first = np.ones(ids.shape, np.bool_)
    first[:, 1:] = grown > 0
    starts = np.flatnonzero(first)
    sums = np.full(_rounded(len(starts)) + 1, ids.size, np.int32)
    sums[: len(starts)] = starts
    return sums


def _rounded(number: int) -> int:
    return max(FEWEST, 1 << (number - 1).bit_length())


@cached(64)
def _within(limits: Limits) -> Pattern:
    """What a document's query sees of it: one object, whose plan is found by its identity."""
    found: Pattern | None = None
    for least, most in limits:
        one = weft.window(None if least is None else -least, most, align="top-left")
        found = one if found is None else found & one
    return weft.full() if found is None else found
