"""Packed documents whose keys lie in pages: a prefill, where queries of each document follow keys that a cache has.

On a GPU kernels find the pages. On the CPU the keys that some query sees are packed, and others are left 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.acsr.needs import needed
from weft.acsr.tokens import Tokens, union
from weft.errors import UnsupportedError
from weft.kernels.backend import choose
from weft.pattern.algebra import Pattern
from weft.pattern.bounds import Ints
from weft.torch import varlen
from weft.torch.call import autocast, check_mask
from weft.torch.inputs import check_choices, check_tensors
from weft.torch.layouts import viewed
from weft.torch.paged_keys import Pages, as_rows, check_table, problem_in_pages

CALL = "varlen_attention"
Tensors = tuple[Tensor, Tensor, Tensor]


def attention(asked: varlen.Asked, tensors: Tensors, table: Tensor, options: dict[str, Any]) -> Any:
    """`weft.varlen_attention` of q (T, Hq, D), k (pages, Hkv, page, D), v (pages, Hkv, page, Dv) and a block table."""
    check_mask(asked.mask, CALL)
    for name in ("extra_keys", "extra_values"):
        if options.get(name) is not None:
            raise UnsupportedError(
                f"{CALL}(block_table=..., {name}=...)", "keys in pages come without others that every query sees",
                f"give each document a page with {name}, or merge a second call with weft.merge",
            )  # fmt: skip
    q, k, v = autocast(*tensors)
    if isinstance(q, Tensor) and q.dim() == 3:
        q = viewed((q, q, q), "thd").tensors[0]
    caches: Tensors = (q, k, v)
    check_tensors(*as_rows(caches, CALL))
    if varlen.on_device(asked.sums) or varlen.on_device(asked.key_sums):
        return _by_device(asked, caches, table, options)
    if q.device.type != "cpu":
        raise UnsupportedError(
            f"{CALL}(block_table=...) on {q.device} with cu_seqlens on the host", "kernels read both where they run",
            f"pass cu_seqlens_q.to({str(q.device)!r}) and cu_seqlens_k.to({str(q.device)!r})",
        )  # fmt: skip
    return _on_host(asked, (tensors[0], k, v), table, options)


def _by_device(asked: varlen.Asked, caches: Tensors, table: Tensor, options: dict[str, Any]) -> Any:
    check_choices("auto", options.get("deterministic"))
    backend = options.get("backend", "auto")
    choose(backend, problem_in_pages(caches, caches[1].shape[2]))
    from weft.torch import device_documents  # it imports Triton

    sums = device_documents.sums_of((asked.sums, asked.key_sums), asked.same, asked.most, caches)
    check_table(table, sums.documents, caches[0].device, CALL)
    scale, softcap, sinks, slopes = (options.get(name) for name in ("scale", "softcap", "sinks", "alibi_slopes"))
    chosen = device_documents.Chosen(scale, softcap, backend)
    out, lse = device_documents.attention(caches, sums._replace(table=table), asked.mask, (sinks, slopes), chosen)
    return (out[0], lse[0].transpose(0, 1)) if options["return_lse"] else out[0]


# ---- on the CPU ------------------------------------------------------------------------------------------------------
def _on_host(asked: varlen.Asked, tensors: Tensors, table: Tensor, options: dict[str, Any]) -> Any:
    q, k, v = tensors
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        raise UnsupportedError(
            f"{CALL}(block_table=...) with gradients", "keys in pages are for inference, and have no backward",
            "call it under torch.no_grad()",
        )  # fmt: skip
    queries = varlen.lengths_of("q", asked.sums, q.shape[0], asked.most[0])
    keys = varlen.lengths_of("k", asked.key_sums, None, asked.most[1])
    check_table(table, keys.size, q.device, CALL)
    varlen.check_documents(asked.mask, queries, keys, asked.same)
    packed = [x.new_zeros(int(keys.sum()), x.shape[1], x.shape[3]) for x in (k, v)]
    first = np.cumsum(keys) - keys
    for i, (m, n) in enumerate(zip(queries.tolist(), keys.tolist(), strict=True)):
        pages = Pages(table, i, k.shape[2], k.shape[0], CALL)
        pages.check(n)
        place = seen_keys(asked.mask, i, (m, n))
        page, at = pages.of(place)
        for into, x in zip(packed, (k, v), strict=True):
            into[torch.from_numpy(first[i] + place)] = x[page, :, at]
    given = (asked.sums, asked.sums if asked.same else asked.key_sums)
    ordinary: Any = varlen.varlen_attention
    return ordinary(q, *packed, *given, asked.mask, **options)


def seen_keys(pattern: Pattern, document: int, sizes: tuple[int, int]) -> Ints:
    """The keys of a document that some query of it sees."""
    m, n = sizes
    if not m or not n:
        return np.zeros(0, np.int64)
    one = varlen.of_document(pattern, document)
    every = Tokens.of(np.array([0]), np.array([m]))
    heads = range(one.extent()[1] or 1)
    found = union([needed(one.acsr(m, n, 0, head), every) for head in heads])
    return found.array()
