"""`weft.decode_attention`: the last tokens against a cache of keys whose number only the device knows.

Nothing on the host depends on the number of keys, so a CUDA graph that was captured once replays at every length. The
pattern is planned for the capacity of the cache: `weft.planning.rowwise` says which patterns can be.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from weft.acsr.steady import why_unsteady
from weft.caching import Recent
from weft.errors import InputError, UnsupportedError
from weft.kernels.backend import choose
from weft.pattern.algebra import Pattern
from weft.planning.problem import Problem
from weft.planning.rowwise import RowPlan, decode_plan
from weft.torch.attention import attention
from weft.torch.cached_rows import Caches, Counted, Rows, Scores, attend
from weft.torch.call import check_mask
from weft.torch.eager import KEPT
from weft.torch.inputs import check_choices, check_options, check_tensors, problem_of
from weft.torch.paged_keys import Pages, as_rows, check_table, problem_in_pages

POSITIONS = 1 << 28  # tokens that a sequence behind a ring cache may have
LOOKED_AT = 1 << 16  # queries that are looked at to see how old the keys are that they may see
COUNTS = {torch.int32: "int32", torch.int64: "int64"}


class Run(Protocol):
    """What answers a call that was checked: (out, lse)."""

    def __call__(self, caches: Caches, counts: _Counts, rows: Rows) -> tuple[Tensor, Tensor]: ...


def decode_attention(  # noqa: PLR0913 - the public face; every option by name
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    mask: Pattern,
    key_count: int | Tensor,
    *,
    offset: Tensor | None = None,
    window: Tensor | None = None,
    ring: bool = False,
    block_table: Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    return_lse: bool = False,
    backend: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention of the last M tokens over the first `key_count` keys of a cache, without learning that number.

    q (B, Hq, M, D), k_cache (B, Hkv, C, D), v_cache (B, Hkv, C, Dv), of capacity C. key_count: tokens so far, q's own
    included. It is an int32 or int64 tensor of shape (), (1,) or (B,) on q's device. The result is that of
    `weft.attention(q, k_cache[:, :, :n], v_cache[:, :, :n], mask)` at n = key_count. A plain int does exactly this.

    offset, of the same shapes: the token of the first query, where it is not key_count - M. window, likewise: a query
    sees only so many tokens up to its own, beside what the mask says. ring: token t lies at place t % C of the cache,
    which holds the last C tokens. A query before token 0 sees no key: out 0, lse -inf.

    block_table (B, P), int32: the cache is paged, as servers keep it. Then the caches are k_cache (pages, Hkv,
    page_size, D) and v_cache (pages, Hkv, page_size, Dv), by any strides, with pages of 16 to 256 tokens.
    FlashAttention and vLLM have (pages, page_size, Hkv, D): pass k_cache.transpose(1, 2). Token t of row b lies at
    place t % page_size of the page block_table[b, t // page_size], and C is P * page_size. Pages that no query sees are
    not read, and may be freed: their numbers may be negative. Replays read counts and tables anew. On the CPU a count
    beyond the table and a wrong number of a page raise. A GPU does not check them: it reads no key beyond the table,
    and takes the nearest page for a number that is none.

    Nothing is read beyond the cache, whatever the counts are. A call is captured into a CUDA graph after one call
    outside of it; replays read the counts anew. No gradients. Options and results as of `weft.attention`.

    Raises InputError for tensors and counts, and OptionError for options. Raises UnsupportedError where gradients are
    asked for, and for masks that must be planned for each length or see older keys than a ring holds.

    Example::

        count = torch.zeros((), dtype=torch.int32, device="cuda")
        mask = weft.causal(align="bottom-right") & weft.window(left=4095, align="bottom-right")
        out = weft.decode_attention(q, k_cache, v_cache, mask, count)
        out = weft.decode_attention(q, k_pages, v_pages, mask, lengths, block_table=table)
    """
    caches, counts = _resolved((q, k_cache, v_cache)), _Counts(key_count, offset, window, ring, block_table)
    given: dict[str, Any] = {"scale": scale, "softcap": softcap, "backend": backend}
    given |= {"sinks": sinks, "alibi_slopes": alibi_slopes}
    if not isinstance(key_count, Tensor):
        if block_table is None:
            return attention(*_first_keys(caches, counts), mask, return_lse=return_lse, **given)
        counts = _as_tensor(caches, counts)
    key = _key_of(caches, mask, counts, given)
    found = _find(key) or _prepare(key, caches, mask, counts, given)
    out, lse = found.run(caches, counts, (sinks, alibi_slopes))
    return (out, lse) if return_lse else out


def _resolved(tensors: tuple[Any, ...]) -> tuple[Any, ...]:
    """Tensors as memory has them: kernels read it, where a lazily negated view holds the other sign."""
    return tuple(x.resolve_neg() if isinstance(x, Tensor) else x for x in tensors)


class _Counts(NamedTuple):
    """What a call says of the number of keys, of where its queries stand, and of where keys lie."""

    key_count: Any
    offset: Any = None
    window: Any = None
    ring: bool = False
    block_table: Any = None

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Those that kernels read."""
        return tuple(x for x in (*self[:3], self.block_table) if x is not None)


def _first_keys(caches: Caches, counts: _Counts) -> Caches:
    """The tensors of an ordinary call, where the host knows the number of keys."""
    q, k, v = caches
    number = _checked_int(counts, k.shape[2])
    return q, k[:, :, :number], v[:, :, :number]


def _as_tensor(caches: Caches, counts: _Counts) -> _Counts:
    """Counts where the host knows the number of keys, and these lie in pages: as the device reads it."""
    q, *_ = as_rows(caches)
    check_table(counts.block_table, q.shape[0], q.device)
    room = counts.block_table.shape[1] * caches[1].shape[2]
    number = torch.full((1,), _checked_int(counts, room), dtype=torch.int32, device=caches[0].device)
    return counts._replace(key_count=number)


def _checked_int(counts: _Counts, room: int) -> int:
    number = counts.key_count
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= room:
        _wrong(f"key_count is {number!r}", f"pass an int from 0 to {room}, or an integer tensor")
    if counts.ring or any(x is not None for x in counts[1:3]):
        cure = "pass key_count=torch.tensor(key_count, dtype=torch.int32, device=q.device)"
        _wrong("offset, window and ring go with a key_count that is a tensor", cure)
    return number


# ---- calls that are known --------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False, slots=True)
class Known:
    """A call that was checked and planned. mask: kept, so that no other pattern takes its id."""

    mask: Pattern
    run: Run


_known: Recent[Hashable, Known] = Recent(KEPT)


def _key_of(caches: Caches, mask: Any, counts: _Counts, given: dict[str, Any]) -> Hashable:
    """All that a check and a plan look at; none of it is a number that only the device knows."""
    tensors = *caches, *counts.tensors, given["sinks"], given["alibi_slopes"]
    lies = tuple([_lie(x) if isinstance(x, Tensor) else type(x) for x in tensors])
    options = tuple([given[name] for name in ("scale", "softcap", "backend")])
    asked = tuple([x is None for x in counts[:3]])
    return id(mask), lies, asked, counts.ring, options, tuple(map(type, options)), torch.is_grad_enabled()


def _lie(x: Tensor) -> Hashable:
    return x.shape, x.stride(), x.dtype, x.device, x.data_ptr() & 15, x.requires_grad


def _find(key: Hashable) -> Known | None:
    try:
        return _known.get(key)
    except TypeError:  # an option without a hash: a check will name it
        return None


def _prepare(key: Hashable, caches: Caches, mask: Any, counts: _Counts, given: dict[str, Any]) -> Known:
    _check(caches, mask, counts, given)
    table = counts.block_table
    problem = problem_of(*caches) if table is None else problem_in_pages(caches, table.shape[1] * caches[1].shape[2])
    backend = choose(given["backend"], problem)
    plan = _plan(mask, problem, counts.ring)
    scale = problem.d**-0.5 if given["scale"] is None else given["scale"]
    if backend.name == "triton":
        run = _on_gpu(plan, caches, counts, {**given, "scale": scale})
    else:
        run = partial(_on_cpu, plan, Scores(scale, given["softcap"]))
    return _known.keep(key, Known(mask, run))


def _on_gpu(plan: RowPlan, caches: Caches, counts: _Counts, given: dict[str, Any]) -> Run:
    from weft.kernels.gpu.layout import Options
    from weft.kernels.gpu.programs.split_kv import Cache
    from weft.kernels.gpu.split_kv.spec import Counts
    from weft.torch.gpu import bind_cache, layout_of

    k, table = caches[1], counts.block_table
    first = counts.tensors[0]
    offset, window = counts.offset is not None, counts.window is not None
    asked = Counts(COUNTS[first.dtype], first.numel() > 1, counts.ring, offset, window)
    cache = Cache(k.shape[2], asked)
    if table is not None:
        length = table.shape[1] * k.shape[2]
        cache = Cache(length, asked._replace(page=k.shape[2]), k.shape[0], (table.stride(0), 1))
    layout = layout_of(caches, sinks=given["sinks"], slopes=given["alibi_slopes"])
    bound = bind_cache(plan, layout, Options(given["scale"], given["softcap"]), cache, k.device)

    def run(caches: Caches, counts: _Counts, rows: Rows) -> tuple[Tensor, Tensor]:
        out, lse = bound((*caches, *[x for x in rows if x is not None], *counts.tensors))
        return out, lse

    return run


def _on_cpu(plan: RowPlan, scores: Scores, caches: Caches, counts: _Counts, rows: Rows) -> tuple[Tensor, Tensor]:
    (q, k, _), table = caches, counts.block_table
    batch, m = q.shape[0], q.shape[2]
    keys, offset, window = (None if x is None else x.reshape(-1).expand(batch).tolist() for x in counts[:3])
    counted = [
        Counted(n, n - m if offset is None else offset[b], None if window is None else window[b])
        for b, n in enumerate(keys or ())
    ]
    if table is not None:
        rows_of = [Pages(table, b, k.shape[2], k.shape[0]) for b in range(batch)]
        for one, pages in zip(counted, rows_of, strict=True):
            pages.check(0 if counts.ring else one.keys)
        counted = [one._replace(pages=pages) for one, pages in zip(counted, rows_of, strict=True)]
    return attend(plan, scores, caches, counted, rows, counts.ring)


def _plan(mask: Pattern, problem: Problem, ring: bool) -> RowPlan:
    """The rows of the mask at every length. Raises UnsupportedError where they depend on it, or a ring forgets keys."""
    plan = decode_plan(mask, problem, POSITIONS if ring else problem.n)
    asked = f"decode_attention under {mask}"
    if isinstance(plan, str):
        cure = 'declare align="bottom-right" for all parts, as mask.aligned("bottom-right") does where none is declared'
        if why_unsteady(mask) is None:
            cure = "pass key_count as an int: the call is then planned for each length"
        raise UnsupportedError(asked, f"its rows are no formula for every number of keys: {plan}", cure)
    if ring and (old := _oldest(plan)) > problem.n - problem.m:
        raise UnsupportedError(
            f"{asked} with a ring of {problem.n} tokens", f"a query may see a key that is {old} tokens before it",
            f"pass caches of {old + problem.m} tokens or more, or a mask with a shorter window",
        )  # fmt: skip
    return plan


def _oldest(plan: RowPlan) -> int:
    """How many tokens before a query the oldest key is that it may see, of the queries that are looked at."""
    early, late = np.arange(LOOKED_AT), np.linspace(LOOKED_AT, plan.capacity - 1, LOOKED_AT).astype(np.int64)
    rows = np.concatenate([early, late])
    ages = [0]
    for relation in plan.relations:
        first, _, count = relation.affine_rows(rows, plan.capacity)
        ages.append(int((rows - first)[count > 0].max(initial=0)))
    return max(ages)


# ---- checks ----------------------------------------------------------------------------------------------------------
def _check(caches: Caches, mask: Any, counts: _Counts, given: dict[str, Any]) -> None:
    check_mask(mask, "decode_attention")
    table = counts.block_table
    check_tensors(*(caches if table is None else as_rows(caches)))
    q = caches[0]
    if table is not None:
        check_table(table, q.shape[0], q.device)
    check_options(q, {**given, "dropout": 0})
    check_choices(given["backend"], None)
    if not isinstance(counts.ring, bool):
        _wrong(f"ring is {counts.ring!r}", "pass True or False")
    for name, x in zip(("key_count", "offset", "window"), counts[:3], strict=True):
        if x is not None:
            _check_count(name, x, q, counts.key_count)
    rows = [x for x in (*caches, given["sinks"], given["alibi_slopes"]) if x is not None]
    if torch.is_grad_enabled() and any(x.requires_grad for x in rows):
        raise UnsupportedError(
            "decode_attention with gradients", "it is for inference, and has no backward",
            "call it under torch.no_grad(), or use weft.attention on the first keys of the cache",
        )  # fmt: skip
    if not all(x.numel() for x in caches):
        _wrong("a tensor is empty", "pass at least one batch row, head, query and place of the cache")


def _check_count(name: str, x: Any, q: Tensor, first: Tensor) -> None:
    cure = f"pass {name} as a contiguous int32 or int64 tensor of shape (), (1,) or ({q.shape[0]},) on {q.device}"
    if not isinstance(x, Tensor) or x.dtype not in COUNTS:
        _wrong(f"{name} is {x.dtype if isinstance(x, Tensor) else type(x).__name__}", cure)
    if x.dim() > 1 or x.numel() not in (1, q.shape[0]) or not x.is_contiguous():
        _wrong(f"{name} has shape {tuple(x.shape)}", cure)
    if x.device != q.device:
        _wrong(f"{name} is on {x.device}", cure)
    if (x.dtype, x.numel()) != (first.dtype, first.numel()):
        _wrong(f"{name} and key_count differ in dtype or shape", "give them one dtype and shape")


def _wrong(wrong: str, cure: str) -> None:
    raise InputError("decode_attention(q, k_cache, v_cache, mask, key_count)", wrong, cure)
