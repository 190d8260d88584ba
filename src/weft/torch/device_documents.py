"""Packed documents whose running sums are on a GPU: nothing of them is read on the host, forward or backward.

The GPU makes the tables of its kernels from the sums, at each call or for all layers of a model that share them. A
captured graph makes them itself, so it serves other lengths at each replay, up to as many tokens as its tensors hold.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active
from torch.compiler import is_compiling

from weft.caching import Recent
from weft.errors import InputError, UnsupportedError
from weft.kernels.backend import choose
from weft.kernels.gpu.documents.spec import known
from weft.kernels.gpu.programs.documents import Documents, PagedKeys
from weft.kernels.options import Modifiers
from weft.pattern.algebra import Pattern
from weft.planning.attention_plan import AttentionPlan
from weft.planning.families.hopper import has_row_bounds
from weft.planning.families.hopper import sums_of as tiling_of_sums
from weft.planning.problem import Problem
from weft.planning.tiling import DIRECTIONS
from weft.runtime.pipeline import compiled
from weft.torch.device_tables import is_capturing
from weft.torch.document_programs import (
    Call,
    Given,
    Recorded,
    Rows,
    Tables,
    Tensors,
    forward,
    joinable,
    one_row,
)
from weft.torch.eager import is_plain
from weft.torch.inputs import check_choices, check_options, check_tensors, problem_of
from weft.torch.paged_keys import problem_in_pages
from weft.torch.varlen import check_aligned

KEPT = 256  # calls
ON_HOST = "pass cu_seqlens.cpu(), once for all layers: lengths on the host are planned"


class Sums(NamedTuple):
    """Running sums of queries and of keys, (documents + 1,) each, and whether both are one. most: the tokens of the
    longest document on either side, None where that is not said: tiles are chosen by it. table: (documents, pages of
    each), where keys lie in pages.
    """

    queries: Tensor
    keys: Tensor
    same: bool
    most: tuple[int | None, int | None]
    table: Tensor | None = None

    @property
    def documents(self) -> int:
        """How many there are."""
        return self.queries.shape[0] - 1


class Chosen(NamedTuple):
    """Options of a call, as given. deterministic: gradients have the same bits each time."""

    scale: float | None
    softcap: float | None
    backend: str
    deterministic: bool = True


_calls: Recent[Hashable, Call] = Recent(KEPT)


def attention(
    tensors: Tensors, sums: Sums, pattern: Pattern, rows: Rows, chosen: Chosen, tables: Tables | None = None
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """out (B, M, Hq, Dv) and lse (1, Hq, B * M) of packed documents.

    tensors: q (B, Hq, M, D), k (B, Hkv, N, D), v (B, Hkv, N, Dv). The documents of all batch rows lie one after the
    other. k and v may be in pages, (pages, Hkv, page, D), without gradients and with B = 1. tables: kept by the caller
    for calls with the same sums, as the layers of a model have.

    The sums are not checked, as they are not on the host: they begin with 0, never fall and end at the tokens or
    before. Queries after the last document have out 0 and lse -inf, keys after it no gradients. Where sums are wrong,
    so are results; no other memory is read or written.
    """
    _check_plain((*tensors, *rows))
    wanted = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (*tensors, rows[0]))
    if wanted and sums.table is not None:
        raise UnsupportedError(
            "varlen_attention(block_table=...) with gradients", "keys in pages are for inference, and have no backward",
            "call it under torch.no_grad()",
        )  # fmt: skip
    if sums.table is None and tensors[0].shape[0] > 1:
        q, k, v = tensors
        tensors = joinable(q), joinable(k), joinable(v)
    call = call_of(tensors, sums, pattern, rows, chosen)
    of_queries = _counted(sums.queries)
    of_keys = of_queries if sums.same else _counted(sums.keys)
    counted = (of_queries, of_keys) if sums.table is None else (of_queries, of_keys, sums.table)
    if tables is not None and tensors[0].is_cuda and is_capturing():  # replays may have other sums
        tables = None
    given = Given(counted, tables, chosen.deterministic)
    if wanted:
        out, lse = Recorded.apply(*tensors, *rows, call, given)
        return out, lse
    return forward(call, tensors, rows, given)


def _counted(sums: Tensor) -> Tensor:
    """As kernels read them."""
    return sums.to(torch.int32).contiguous() if sums.dtype != torch.int32 or not sums.is_contiguous() else sums


# ---- checks ----------------------------------------------------------------------------------------------------------
def sums_of(given: tuple[Any, Any], same: bool, most: tuple[Any, Any], tensors: Tensors) -> Sums:
    """Checked sums, of which one is on a GPU. given: of queries and of keys. tensors: (T, H, D)."""
    for side, x in zip("qk", given, strict=True):
        name = f"cu_seqlens_{side}"
        if not isinstance(x, Tensor) or x.device != tensors[0].device:
            found = x.device if isinstance(x, Tensor) else type(x).__name__
            _wrong(f"{name} is {found}, q is on {tensors[0].device}", "put both running sums there, or both on the CPU")
        if x.dtype not in (torch.int32, torch.int64) or x.dim() != 1 or not x.shape[0]:
            said = f"{name} is {tuple(x.shape)} of {x.dtype}"
            _wrong(said, f"pass {name} as a vector of int32 or int64, [0, n0, n0 + n1, ...]")
    if given[0].shape != given[1].shape:
        documents = [x.shape[0] - 1 for x in given]
        wrong = f"there are {documents[0]} documents of queries and {documents[1]} of keys"
        _wrong(wrong, "give both as many documents")
    for side, longest in zip("qk", most, strict=True):
        if longest is not None and (isinstance(longest, bool) or not isinstance(longest, int) or longest < 0):
            name = f"max_seqlen_{side}"
            _wrong(f"{name} is {type(longest).__name__}", f"pass {name} as an int of Python, or leave it out")
    return Sums(*given, same, (most[0], most[1]))


def _check_plain(tensors: tuple[Any, ...]) -> None:
    if is_compiling():
        raise UnsupportedError(
            "varlen_attention inside a compiled function", "its launches are no operator yet that a graph could hold",
            "call it outside of it, or mark the function that calls it with torch.compiler.disable",
        )  # fmt: skip
    strange = next((x for x in tensors if x is not None and not is_plain(x)), None)
    if strange is not None or _are_functorch_transforms_active():
        what = "a torch.func transform" if strange is None else type(strange).__name__
        raise UnsupportedError(
            f"varlen_attention with lengths on the device, of {what}", "its kernels take plain tensors alone", ON_HOST
        )  # fmt: skip


def _check(tensors: Tensors, sums: Sums, pattern: Pattern, rows: Rows, chosen: Chosen) -> None:
    sums_of((sums.queries, sums.keys), sums.same, sums.most, tensors)
    options = {"scale": chosen.scale, "softcap": chosen.softcap, "sinks": rows[0], "alibi_slopes": rows[1]}
    check_options(tensors[0], options)
    check_choices(chosen.backend, None)
    check_aligned(pattern, sums.same)
    if rows[1] is not None and (not sums.same or sums.table is not None or rows[1].requires_grad):
        why = "slopes have no gradient there" if rows[1].requires_grad else "distances are counted over all tokens"
        raise UnsupportedError("varlen_attention(alibi_slopes=...) with lengths on the device", why, ON_HOST)
    if pattern.extent() != (None, None):
        raise UnsupportedError(
            f"varlen_attention under {pattern} with lengths on the device", "it tells documents or heads apart", ON_HOST
        )  # fmt: skip


def _wrong(wrong: str, cure: str) -> None:
    raise InputError("varlen_attention(q, k, v, cu_seqlens_q, cu_seqlens_k, ...)", wrong, cure)


def paged_keys(tensors: Tensors, table: Tensor) -> PagedKeys:
    """How checked keys and values lie in pages. Raises InputError where kernels cannot count from page to page."""
    _, k, v = tensors
    strides, (pages, page) = (k.stride(), v.stride()), (k.shape[0], k.shape[2])
    steps = [divmod(one[0], one[2]) if one[2] else (0, 1) for one in strides]
    if steps[0] != steps[1] or steps[0][1] or steps[0][0] * pages >= 1 << 31:
        raise InputError(
            "varlen_attention(..., block_table=...)",
            f"pages of k_cache and v_cache have strides {strides[0]} and {strides[1]}, not one whole number of tokens",
            "pass both as (pages, Hkv, page_size, D) or (pages, page_size, Hkv, D).transpose(1, 2), contiguous",
        )  # fmt: skip
    return PagedKeys(pages, page, table.shape[1], table.stride(0), steps[0][0], strides)


# ---- plans -----------------------------------------------------------------------------------------------------------
def call_of(tensors: Tensors, sums: Sums, pattern: Pattern, rows: Rows, chosen: Chosen) -> Call:
    """The call of plain tensors, checked and planned when it is first asked for."""
    q, k, v = tensors
    paged = None if sums.table is None else paged_keys(tensors, sums.table)
    key = (
        pattern, sums.documents,  # by value: it may be written anew at each call
        sums.queries.device, sums.same, sums.most, paged, chosen, tuple(map(type, chosen)),
        *((x.shape, x.dtype, x.device) for x in (q, k, v)),
        *(x is not None and (x.shape, x.dtype, x.device, x.requires_grad) for x in rows),
    )  # fmt: skip
    try:
        call = _calls.get(key)
    except TypeError:  # an option without a hash: a check will name it
        call = None
    if call is not None:
        return call
    _check(tensors, sums, pattern, rows, chosen)
    if paged is None:
        flat = one_row(q), one_row(k), one_row(v)
        check_tensors(*flat)
        problem = problem_of(*flat)
    else:
        problem = problem_in_pages((q, k, v), paged.room)
    choose(chosen.backend, problem)
    scale = problem.d**-0.5 if chosen.scale is None else chosen.scale
    plan, documents = _planned(pattern, problem, sums, chosen.backend)
    return _calls.keep(key, Call(plan, replace(documents, paged=paged), Modifiers(scale, chosen.softcap)))


def _planned(pattern: Pattern, problem: Problem, sums: Sums, backend: str) -> tuple[AttentionPlan, Documents]:
    """A plan of the whole problem, and documents with the tilings that are best for the longest ones."""
    found = known(pattern, max(problem.m, problem.n))
    longest = [min(x or length, length) or 1 for x, length in zip(sums.most, (problem.m, problem.n), strict=True)]
    m, n = (max(longest),) * 2 if sums.same else longest
    batch = max(1, problem.m // m) if sums.most[0] else 1
    plan, _ = compiled(pattern.filled("bottom-right"), replace(problem, batch=batch, m=m, n=n), backend)
    tilings = {one: plan.unspecialised(one)[0].plan.tiling for one in DIRECTIONS}
    known_ones = {one: tiling for one, tiling in tilings.items() if tiling is not None}
    groups = added = None
    if sums.same and sums.table is None and found.sees_itself(m):
        special = plan.specialised("forward")
        groups = None if special is None else special[0].plan.tiling
        groups = groups if groups is not None and has_row_bounds(groups) else None
        added = tiling_of_sums(problem) if plan.in_one is not None and plan.sums_by_groups else None
    return replace(plan, problem=problem), Documents(sums.documents, found, known_ones, groups=groups, sums=added)
