"""Lengths of packed sequences, as NATTEN takes them, and attention inside each sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

import weft
from weft.acsr.packed import packed
from weft.errors import InputError

Sums = tuple[Tensor, Tensor, int, int]  # running sums of queries and keys, the longest of each


def generate_varlen_parameters(
    query: Tensor, key: Tensor, value: Tensor, seqlens_Q: Tensor | None = None, seqlens_KV: Tensor | None = None
) -> tuple[Tensor, Tensor, int, int] | tuple[None, None, int, int]:
    """(cumulative_seqlen_Q, cumulative_seqlen_KV, max_seqlen_Q, max_seqlen_KV) of lengths; (None, None, 0, 0) of none.

    query, key, value: (1, tokens, heads, head_dim). seqlens_Q, seqlens_KV: int32 (sequences,), on the device of query.
    Raises ValueError for lengths that do not fit, RuntimeError inside a compiled function. Example::

        parameters = generate_varlen_parameters(q, k, v, seqlens_Q, seqlens_KV)
    """
    if is_compiling():
        raise RuntimeError(
            "generate_varlen_parameters inside a compiled function\n  wrong: it reads lengths, which a graph cannot"
            "\n  do:    call it outside, and pass cumulative_seqlen_Q, cumulative_seqlen_KV and the maxima"
        )
    _check_batch((query, key, value))
    if seqlens_Q is None and seqlens_KV is None:
        return None, None, 0, 0
    lengths = _checked(query, {"seqlens_Q": seqlens_Q, "seqlens_KV": seqlens_KV}, 1)
    sums = [torch.cat([x.new_zeros(1), x.cumsum(0).to(torch.int32)]) for x in lengths]
    return sums[0], sums[1], int(lengths[0].max()), int(lengths[1].max())


def lengths_of(tensors: Sequence[Tensor], lengths: tuple[Any, Any], given: tuple[Any, Any, Any, Any]) -> Sums | None:
    """What an attention was told of packed sequences, checked; None where nothing was.

    lengths: seqlens_Q, seqlens_KV. given: cumulative_seqlen_Q, cumulative_seqlen_KV, max_seqlen_Q, max_seqlen_KV.
    """
    _check_batch(tensors)
    if lengths[0] is not None or lengths[1] is not None:
        query, key, value = tensors
        made = generate_varlen_parameters(query, key, value, *lengths)
        return None if made[0] is None or made[1] is None else made
    if given[0] is None and given[1] is None and not given[2] and not given[3]:
        return None
    names = ("cumulative_seqlen_Q", "cumulative_seqlen_KV", "max_seqlen_Q", "max_seqlen_KV")
    missing = [name for name, x in zip(names, given, strict=True) if x is None]
    if missing:
        _wrong(f"{missing[0]} is missing", "pass both running sums and both maxima")
    for most, x, name in ((given[2], tensors[0], names[2]), (given[3], tensors[1], names[3])):
        if not isinstance(most, int) or isinstance(most, bool) or not 0 <= most <= x.shape[1]:
            _wrong(f"{name} is {most!r}, of {x.shape[1]} tokens", "pass the longest sequence as an int")
    if not is_compiling() and (given[2] == 0) != (given[3] == 0):
        _wrong("one of the maxima is 0", "pass the longest sequence of queries and of keys")
    sums = _checked(tensors[0], {names[0]: given[0], names[1]: given[1]}, 2)
    return sums[0], sums[1], given[2], given[3]


def varlen(tensors: Sequence[Tensor], pattern: Any, sums: Sums, options: dict[str, Any]) -> Any:
    """Attention of packed (1, tokens, heads, head_dim) under one pattern for each sequence: out, or (out, lse)."""
    q, k, v = (x.squeeze(0) for x in tensors)
    found: Any
    if is_compiling():  # lengths are data of the graph
        lengths = [x.cpu().long().diff() for x in sums[:2]]
        found = weft.attention(q, k, v, packed(pattern, *lengths), layout="thd", **options)
    else:
        options = {**options, "max_seqlen_q": sums[2], "max_seqlen_k": sums[3]}
        found = weft.varlen_attention(q, k, v, sums[0], sums[1], pattern, **options)
    return tuple(x.unsqueeze(0) for x in found) if options["return_lse"] else found.unsqueeze(0)


def _check_batch(tensors: Sequence[Tensor]) -> None:
    batches = [x.shape[0] for x in tensors]
    if batches[0] != batches[1] or batches[0] != batches[2]:
        _wrong(f"query, key and value have {batches} batch rows", "give all three one batch size")


def _checked(query: Tensor, lengths: dict[str, Any], least: int) -> tuple[Tensor, Tensor]:
    """Two int32 vectors of one length on the device of query, whose tokens are packed."""
    for name, x in lengths.items():
        if not isinstance(x, Tensor):
            _wrong(f"{name} is {type(x).__name__}", "pass both as tensors")
        if x.device != query.device:
            _wrong(f"{name} is on {x.device}, query on {query.device}", f"pass {name}.to(query.device)")
        if x.dtype != torch.int32:
            _wrong(f"{name} is {x.dtype}", f"pass {name}.int()")
        if x.dim() != 1 or x.shape[0] < least:
            _wrong(f"{name} is {tuple(x.shape)}", f"pass a vector with {least} entries or more")
    first, second = lengths.values()
    if first.shape != second.shape:
        _wrong(f"there are {first.shape[0]} and {second.shape[0]} entries", "give queries and keys as many sequences")
    if query.shape[0] != 1:
        _wrong(f"there are {query.shape[0]} batch rows", "pack all sequences one after the other in one batch row")
    return first, second


def _wrong(wrong: str, cure: str) -> None:
    raise InputError("attention(query, key, value, ...) of packed sequences", wrong, cure)
