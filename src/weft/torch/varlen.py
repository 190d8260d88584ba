"""`weft.varlen_attention`: documents packed one after the other, (T, H, D), under one pattern for each of them.

With lengths on the host all documents are one plan in two cases. In the first every row of a document is a few
intervals of keys. In the second the pattern asks for distances alone, and queries and keys are the same tokens. Else
each document is a call of its own. Lengths on a GPU stay there: `weft.torch.device_documents`.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Unpack, overload

import numpy as np
import torch
from torch import Tensor
from torch.compiler import is_compiling

from weft.acsr.packed import intervals_of, packed
from weft.caching import Recent
from weft.errors import AlignmentError, InputError, PatternError, UnsupportedError, WeftError
from weft.kernels.backend import choose
from weft.pattern.algebra import Call, Operator, Pattern, Shift
from weft.pattern.arguments import rebuild
from weft.pattern.bounds import Ints
from weft.pattern.library import documents
from weft.torch.attention import SharedOptions, attention
from weft.torch.call import attend, autocast, check_mask, unwrapped
from weft.torch.inputs import check_choices, check_tensors, problem_of
from weft.torch.keywords import OWN, refuse_unknown
from weft.torch.layouts import hint, viewed
from weft.torch.merging import merge
from weft.torch.translate import EXTRA, FULL, extra_of

if TYPE_CHECKING:
    from weft.recognition import Recognized

KEPT = 256  # patterns with the lengths that they were packed for
BY_DISTANCE = ("full", "nothing", "causal", "window", "dilated", "strided", "per_head")  # ask for k - q alone
PER_ROW = ("per_batch", "padding", "prefix")  # take one entry for each batch row
BY_PLACE = ("score", "bias", "dropout", "seed")  # ask which token of its document a query or a key is
KEYWORDS = frozenset(OWN) - {"mask", "layout", "return_lse"}


@overload
def varlen_attention(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Any, cu_seqlens_k: Any,
    pattern_per_document: Pattern | Recognized, *, max_seqlen_q: int | None = None, max_seqlen_k: int | None = None,
    block_table: Tensor | None = None, return_lse: Literal[False] = False, **options: Unpack[SharedOptions],
) -> Tensor: ...  # fmt: skip
@overload
def varlen_attention(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Any, cu_seqlens_k: Any,
    pattern_per_document: Pattern | Recognized, *, max_seqlen_q: int | None = None, max_seqlen_k: int | None = None,
    block_table: Tensor | None = None, return_lse: bool, **options: Unpack[SharedOptions],
) -> Any: ...  # fmt: skip
def varlen_attention(  # noqa: PLR0913 - the public face; every option by name
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Any, cu_seqlens_k: Any,
    pattern_per_document: Pattern | Recognized, *, max_seqlen_q: int | None = None, max_seqlen_k: int | None = None,
    block_table: Tensor | None = None, return_lse: bool = False, **options: Any,
) -> Any:  # fmt: skip
    """Attention inside each of many documents, packed one after the other.

    - q (T, Hq, D), k (S, Hkv, D), v (S, Hkv, Dv): the documents' tokens, as `attention` takes them with layout="thd".
    - cu_seqlens_q, cu_seqlens_k: running sums from 0 of the documents' lengths, (documents + 1,) integers. With None or
      the same object for cu_seqlens_k, queries and keys are the same tokens. A document may be empty.
      On the CPU any pattern is planned. On the GPU of q they are never read by the host: no call waits, and a captured
      graph serves other lengths. There the pattern is full, causal, windows or chunks, and heads are alike.
    - pattern_per_document: a pattern, for each document at its own lengths and by its own alignment. It needs one
      unless queries and keys are the same tokens. Where it tells batch rows apart, row i is for document i.
    - max_seqlen_q, max_seqlen_k: no document is longer. Checked where cu_seqlens is on the CPU; tiles are chosen by
      them where it is on a GPU.
    - block_table (documents, P), int32: keys lie in pages, for inference. k is (pages, Hkv, page_size, D) and v (pages,
      Hkv, page_size, Dv), by any strides. Key t of document i lies at place t % page_size of page
      block_table[i, t // page_size]; cu_seqlens_k counts the keys. Pages that no query sees are not read,
      and may be freed: their numbers may be negative. Neither extra_keys nor, on a GPU, slopes.
    - return_lse and the other keywords: as of `attention`. Slopes count distances inside a document. Score functions,
      bias and dropout see b = document, and q and k counted in it. Lengths are then on the host, and documents are
      padded to one length.

    Returns out (T, Hq, Dv); with return_lse also lse (T, Hq). Gradients flow as of `attention`. Raises what that does,
    InputError for lengths that do not fit, AlignmentError for a pattern without an alignment. Sums on a GPU are not
    checked: if they fall, or exceed T, results are wrong, and no other memory is met. Tokens after the last document,
    as a captured graph may have, give out 0, lse -inf and zero gradients. Example::

        sums = torch.tensor([0, 5, 5, 12], dtype=torch.int32)
        out = weft.varlen_attention(q, k, v, sums, sums, weft.causal() & weft.window(left=1023))
    """
    if not options.keys() <= KEYWORDS:
        unknown = {name: x for name, x in options.items() if name not in KEYWORDS}
        refuse_unknown("varlen_attention", unknown, tuple(sorted(KEYWORDS)))
    mask = unwrapped(pattern_per_document)
    same = cu_seqlens_k is None or cu_seqlens_k is cu_seqlens_q
    asked = Asked(mask, cu_seqlens_q, cu_seqlens_q if same else cu_seqlens_k, same, (max_seqlen_q, max_seqlen_k))
    given: dict[str, Any] = {**options, "return_lse": return_lse}
    if block_table is not None:
        _refuse_places(asked, given)
        return _in_pages(asked, (q, k, v), block_table, given)
    try:
        if on_device(asked.sums) or on_device(asked.key_sums):
            _refuse_places(asked, given)
            return _by_device(asked, (q, k, v), given)
        work = _found(asked, q, k) or _packing(asked, (q, k, v))
    except WeftError as error:
        hint(error, (q, k, v), "thd")
        raise
    if work.queries and _asks_for_places(given):
        return _in_rows((q, k, v), work, given)
    # one plan counts distances from the first query and the first key of all
    unlike = any(work.queries) and work.queries != work.keys
    whole = None if unlike and options.get("alibi_slopes") is not None else work.whole
    if whole is not None:
        return attention(q, k, v, whole, layout="thd", **given)
    return _one_by_one((q, k, v), work, given)


def on_device(sums: Any) -> bool:
    """Whether running sums are where the host does not read them."""
    return isinstance(sums, Tensor) and sums.device.type != "cpu"


def _by_device(asked: Asked, tensors: tuple[Tensor, Tensor, Tensor], options: dict[str, Any]) -> Any:
    """With lengths on a GPU; extra keys are a second call, whose result is merged."""
    check_mask(asked.mask, "varlen_attention")
    deterministic = options.get("deterministic")
    check_choices("auto", deterministic)
    if deterministic is None:
        deterministic = torch.are_deterministic_algorithms_enabled()
    view = viewed(autocast(*tensors), "thd")
    check_tensors(*view.tensors)
    choose(options.get("backend", "auto"), problem_of(*view.tensors))
    from weft.torch import device_documents  # it imports Triton

    sums = device_documents.sums_of((asked.sums, asked.key_sums), asked.same, asked.most, tensors)
    scale, softcap, sinks, slopes = (options.get(name) for name in ("scale", "softcap", "sinks", "alibi_slopes"))
    chosen = device_documents.Chosen(scale, softcap, options.get("backend", "auto"), deterministic)
    extra = extra_of({name: options.get(name) for name in EXTRA}, view)
    out, lse = device_documents.attention(view.tensors, sums, asked.mask, (sinks, slopes), chosen)
    if extra is not None:
        more = attend((view.tensors[0], *extra), FULL, (None, None), (scale, softcap, 0, chosen.backend, None), True)
        out, lse = merge([out.transpose(1, 2), more[0]], [lse, more[1]])
        out = out.transpose(1, 2)
    return (out[0], view.back(lse)) if options["return_lse"] else out[0]


def _in_pages(asked: Asked, tensors: tuple[Tensor, Tensor, Tensor], table: Tensor, options: dict[str, Any]) -> Any:
    """With keys in pages: on a GPU kernels find them, on the CPU those that some query sees are packed first."""
    from weft.torch import paged_documents

    return paged_documents.attention(asked, tensors, table, options)


def _asks_for_places(options: dict[str, Any]) -> list[str]:
    """The options that ask which token of its document a query or a key is."""
    off = {name for name in ("dropout",) if isinstance(options.get(name), (int, float)) and not options[name]}
    return [name for name in BY_PLACE if options.get(name) is not None and name not in off]


def _refuse_places(asked: Asked, options: dict[str, Any]) -> None:
    """Raise where lengths are not on the host, for options that need them there."""
    names = _asks_for_places(options)
    if names:
        raise UnsupportedError(
            f"varlen_attention({names[0]}=...) with lengths on {asked.sums.device} or keys in pages",
            "which token of its document a query is, is known to kernels where the host knows lengths",
            "pass cu_seqlens.cpu(), and keys one after the other",
        )  # fmt: skip


def _in_rows(tensors: tuple[Tensor, Tensor, Tensor], work: _Work, options: dict[str, Any]) -> Any:
    """Documents as batch rows."""
    from weft.torch import document_rows

    lengths = work.queries, work.keys
    if not work.rows:
        work.rows.append(document_rows.mask_of(work.mask, lengths))
    return document_rows.attend(tensors, work.rows[0], lengths, options)


# ---- what a pattern is for documents of some lengths ----------------------------------------------------------------
class Asked(NamedTuple):
    """A pattern, running sums on both sides, whether these are one object, and the maximal lengths."""

    mask: Any
    sums: Any
    key_sums: Any
    same: bool
    most: tuple[int | None, int | None]


@dataclass(frozen=True, eq=False, slots=True)
class _Work:
    """mask: kept, so that no other pattern takes its id. whole: of all documents; None where each is its own call.
    rows: the pattern of documents as batch rows, once it was asked for.
    """

    mask: Pattern
    queries: list[int]
    keys: list[int]
    whole: Pattern | None
    rows: list[Pattern] = field(default_factory=list)


_packed: Recent[Hashable, _Work] = Recent(KEPT)


def _key(asked: Asked, q: Any, k: Any) -> Hashable:
    """What the work depends on, None where something is wrong, which a check will name."""
    if is_compiling():
        return None
    try:
        both = _content(asked.sums), _content(asked.key_sums)
        return id(asked.mask), both, asked.same, asked.most, q.shape[0], k.shape[0]
    except (AttributeError, IndexError, RuntimeError, TypeError):
        return None


def _content(sums: Any) -> tuple[Any, ...]:
    array = sums.numpy() if isinstance(sums, Tensor) else sums
    return array.dtype, array.shape, array.tobytes()


def _found(asked: Asked, q: Any, k: Any) -> _Work | None:
    key = _key(asked, q, k)
    return None if key is None else _packed.get(key)


def _packing(asked: Asked, tensors: tuple[Tensor, Tensor, Tensor]) -> _Work:
    """Check a call, and pack its documents."""
    mask, sums, key_sums, same, (most, most_keys) = asked
    check_mask(mask, "varlen_attention")
    if is_compiling():
        raise UnsupportedError(
            "varlen_attention inside a compiled function", "lengths are read on the host, which a graph cannot",
            'call it outside of it, or pass attention(..., layout="thd") a pattern that was made outside',
        )  # fmt: skip
    check_tensors(*viewed(tensors, "thd").tensors)
    queries = lengths_of("q", sums, tensors[0].shape[0], most)
    keys = lengths_of("k", key_sums, tensors[1].shape[0], most_keys)
    check_documents(mask, queries, keys, same)
    found = _Work(mask, queries.tolist(), keys.tolist(), _whole(mask, queries, keys, same))
    key = _key(asked, tensors[0], tensors[1])
    return found if key is None else _packed.keep(key, found)


def lengths_of(side: str, sums: Any, tokens: int | None, most: int | None) -> Ints:
    """The lengths of running sums, of so many tokens in all where that is given."""
    name = f"cu_seqlens_{side}"
    if isinstance(sums, Tensor):
        sums = sums.detach().numpy()
    if not isinstance(sums, np.ndarray) or sums.ndim != 1 or sums.dtype.kind not in "iu" or not sums.size:
        said = f"{tuple(sums.shape)} of {sums.dtype}" if isinstance(sums, np.ndarray) else type(sums).__name__
        _wrong(f"{name} is {said}", f"pass {name} as a tensor of integers, [0, n0, n0 + n1, ...]")
    found: Ints = np.diff(sums.astype(np.int64))
    if sums[0] != 0 or (found < 0).any():
        at = int((found < 0).argmax())
        wrong = f"{name} begins with {sums[0]}" if sums[0] else f"{name} falls after position {at}"
        _wrong(wrong, f"pass {name} as running sums from 0 that never fall")
    if tokens is not None and sums[-1] != tokens:
        _wrong(f"{name} ends at {sums[-1]}, {side} has {tokens} tokens", f"let {name} end at the number of tokens")
    if most is not None and found.size and found.max() > most:
        wrong = f"document {int(found.argmax())} has {found.max()} tokens, max_seqlen_{side} is {most}"
        _wrong(wrong, f"pass max_seqlen_{side}={found.max()} or more, or leave it out")
    return found


def _wrong(wrong: str, cure: str) -> None:
    raise InputError("varlen_attention(q, k, v, cu_seqlens_q, cu_seqlens_k, ...)", wrong, cure)


def check_documents(pattern: Pattern, queries: Any, keys: Any, same: bool) -> None:
    """Raise where a pattern has no meaning for documents of such lengths."""
    if queries.size != keys.size:
        _wrong(f"there are {queries.size} documents of queries and {keys.size} of keys", "give both as many documents")
    check_aligned(pattern, same)
    rows = pattern.extent()[0]
    if rows is not None and rows != queries.size:
        raise PatternError(
            f"varlen_attention under {pattern}",
            f"it tells {rows} batch rows apart, and there are {queries.size} documents",
            "give one row for each document",
        )  # fmt: skip


def check_aligned(pattern: Pattern, same: bool) -> None:
    """Raise AlignmentError where a pattern needs an alignment and has none. same: queries and keys are one."""
    if not same and None in set(pattern.alignments()):
        raise AlignmentError(
            f"varlen_attention under {pattern}", "it does not say how the queries of a document stand beside its keys",
            'call .aligned("bottom-right") on the pattern (last query beside last key) or .aligned("top-left"). Where '
            "queries and keys are the same tokens, pass the same cu_seqlens for both",
        )  # fmt: skip


def _whole(pattern: Pattern, queries: Any, keys: Any, same: bool) -> Pattern | None:
    """All documents as one pattern: documents(...) & pattern where that is the same, else intervals of keys.

    There is one wherever no document has queries.
    """
    if not queries.any():
        return packed(pattern, queries, keys)
    if same and _by_distance(pattern):
        return documents(queries) & pattern
    heads = range(pattern.extent()[1] or 1)
    sizes = {(m, n) for m, n in zip(queries.tolist(), keys.tolist(), strict=True) if m and n}
    rows = pattern.extent()[0]
    asked = [(rows_at, head) for rows_at in range(rows or 1) for head in heads]
    for m, n in sizes:
        for row, head in asked:
            if rows is not None and (queries[row], keys[row]) != (m, n):
                continue
            pattern.check(m, n, f"{pattern} at M={m}, N={n}")
            if intervals_of(pattern.at(row, head), m, n) is None:
                return None
    return packed(pattern, queries, keys)


def _by_distance(pattern: Pattern) -> bool:
    """Whether a pattern asks for k - q alone, so that where a document begins does not matter."""
    if isinstance(pattern, Call):
        parts = [part for _, x in pattern.args if isinstance(x, tuple) for part in x if isinstance(part, Pattern)]
        return pattern.name in BY_DISTANCE and all(_by_distance(part) for part in parts)
    if isinstance(pattern, Shift):  # what moves in from before a document is dead
        return False
    return isinstance(pattern, Operator) and all(_by_distance(part) for part in pattern.parts)


def _one_by_one(tensors: tuple[Tensor, Tensor, Tensor], work: _Work, options: dict[str, Any]) -> Any:
    """A call for each document that has queries."""
    q, k, v = tensors
    split = zip(q.split(work.queries), k.split(work.keys), v.split(work.keys), strict=True)
    found = [
        attention(*three, of_document(work.mask, i), layout="thd", **{**options, "return_lse": True})
        for i, three in enumerate(split)
        if work.queries[i]
    ]
    out = torch.cat([one[0] for one in found])
    return (out, torch.cat([one[1] for one in found])) if options["return_lse"] else out


def of_document(pattern: Pattern, i: int) -> Pattern:
    """What document i sees of a pattern that may tell batch rows apart."""
    if pattern.extent()[0] is None:
        return pattern
    if isinstance(pattern, Operator):
        return pattern.rebuilt(tuple(of_document(part, i) for part in pattern.parts))
    if isinstance(pattern, Call):
        args = dict(pattern.args)
        first = next(iter(args))
        if pattern.name == "per_batch":
            row: Pattern = args[first][i]
            return row
        if pattern.name in PER_ROW:
            return rebuild(pattern.name, {**args, first: int(args[first].array[i])})
        if pattern.name == "per_head":
            return rebuild("per_head", {first: tuple(of_document(part, i) for part in args[first])})
    raise PatternError(
        f"varlen_attention under {pattern}", "which of its batch rows is a document's is not known",
        "write it as weft.per_batch([...]), one pattern for each document",
    )  # fmt: skip
