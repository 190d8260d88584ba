"""Packed documents as batch rows, for what asks which token of its document a query or a key is.

Score functions, biases and dropout see b = document, and q and k counted in it. Rows are as long as the longest
document; no query sees what is beyond its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from weft.acsr.packed import packed
from weft.errors import UnsupportedError
from weft.pattern.algebra import Pattern
from weft.pattern.composites import per_batch
from weft.pattern.library import nothing
from weft.torch.attention import attention
from weft.torch.varlen import of_document

EXTRA = ("extra_keys", "extra_values")
NOTHING = nothing()


Lengths = tuple[list[int], list[int]]  # of the queries and of the keys of each document


def mask_of(pattern: Pattern, lengths: Lengths) -> Pattern:
    """A pattern for each document as one of all batch rows."""
    room = max(lengths[0]), max(lengths[1])
    each = [_within(of_document(pattern, i), size, room) for i, size in enumerate(zip(*lengths, strict=True))]
    return per_batch(each)


def attend(tensors: Sequence[Tensor], mask: Pattern, lengths: Lengths, options: dict[str, Any]) -> Any:
    """(T, Hq, Dv), as `weft.attention` of q (T, Hq, D), k (S, Hkv, D), v (S, Hkv, Dv). mask: of `mask_of`. options:
    keywords of `attention`, return_lse among them.
    """
    queries, keys = lengths
    m = max(queries)
    if options.get("alibi_slopes") is not None and any(a != b for a, b in zip(queries, keys, strict=True)):
        raise UnsupportedError(
            "varlen_attention(alibi_slopes=..., score=...)", "documents have other numbers of keys than of queries",
            "add the slopes as a bias: bias=weft.bias.alibi(slopes), or give queries and keys one length",
        )  # fmt: skip
    each = [x.split(some) for x, some in zip(tensors, (queries, keys, keys), strict=True)]
    rows = [pad_sequence(list(some), batch_first=True) for some in each]
    given = dict(options)
    for name in EXTRA:
        if given.get(name) is not None:
            given[name] = given[name].expand(len(queries), *given[name].shape)
    ordinary: Any = attention
    found = ordinary(*rows, mask, layout="bshd", **given)
    there = torch.arange(m, device=rows[0].device) < torch.tensor(queries, device=rows[0].device)[:, None]
    return tuple(x[there] for x in found) if isinstance(found, tuple) else found[there]


def _within(pattern: Pattern, sizes: tuple[int, int], room: tuple[int, int]) -> Pattern:
    """A pattern at its own lengths, and nothing beyond them."""
    rest = room[0] - sizes[0], room[1] - sizes[1]
    if rest == (0, 0):
        return pattern
    return packed(per_batch([pattern, NOTHING]), [sizes[0], rest[0]], [sizes[1], rest[1]])
