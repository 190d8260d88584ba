"""Attention over a sequence that the ranks of a process group hold together, on torch tensors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import weft
from weft.distributed.model import Link
from weft.distributed.plan import Plan, planned
from weft.errors import InputError, OptionError
from weft.pattern.algebra import Pattern
from weft.torch.call import autocast
from weft.torch.distributed.agreement import agreed
from weft.torch.distributed.by_heads import by_heads
from weft.torch.distributed.by_nodes import by_nodes
from weft.torch.distributed.by_tokens import by_tokens
from weft.torch.distributed.groups import group_of
from weft.torch.distributed.ranks import Rank, Result
from weft.torch.distributed.scores import asked_for, dropping
from weft.torch.keywords import refuse_unknown

LAYOUTS = ("bhsd", "bshd")
BY_HEADS = {"ulysses": by_heads, "ulysses+halo": by_nodes}


@torch.compiler.disable  # type: ignore[untyped-decorator]  # a compiled caller breaks its graph here
def attention(  # noqa: PLR0913 - the public face; every option by name
    q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, *, group: Any = None, mesh: Any = None, dim: int | str = 0,
    shards: Any = "contiguous", strategy: str | None = None, scale: float | None = None, softcap: float | None = None,
    sinks: Tensor | None = None, return_lse: bool = False, backend: str = "auto", deterministic: bool | None = None,
    layout: str = "bhsd", alibi_slopes: Tensor | None = None, score: Any = None, bias: Any = None,
    extra_keys: Tensor | None = None, extra_values: Tensor | None = None, dropout: float = 0,
    seed: int | Tensor | None = None, link: Link | None = None, **unknown: Any,
) -> Tensor | Result:  # fmt: skip
    """`weft.attention` of a sequence of which each rank holds some tokens; called by all ranks of a group alike.

    - q (B, Hq, S, D), k (B, Hkv, S, D), v (B, Hkv, S, Dv): this rank's tokens, in ascending order; "bshd": heads after
      tokens. pattern: on the indices of the whole sequence.
    - group: a ProcessGroup, None: the default one; or mesh and dim: a DeviceMesh and one of its dimensions.
    - shards, strategy, link: see `weft.distributed.plan`. Other options are those of `weft.attention`. Sinks, slopes,
      tables of score and bias and the extra tensors are the same on all ranks. Their gradients are of what this rank
      computed alone: add them up over ranks, as any replicated parameter's. Dense biases are refused. Dropout drops the
      pairs that one device drops for the same seed; the seed of the group's first rank counts, given or drawn.

    Returns out for this rank's tokens, as `weft.attention` does. Gradients of k and v come back to the ranks that hold
    them, and are added in float32 in the order of ranks.

    Raises InputError where ranks disagree about anything (compared once for each kind of call), OptionError for shards
    that do not fit. Example::

        out = weft.distributed.attention(q, k, v, weft.causal() & weft.window(left=1023), group=group)
    """
    group = group_of(group, mesh, dim)
    if layout not in LAYOUTS:
        raise OptionError(
            f"distributed.attention(layout={layout!r})", f"it is none of {', '.join(LAYOUTS)}", "pass one of them"
        )
    q, k, v = autocast(*(x.transpose(1, 2) if layout == "bshd" else x for x in (q, k, v)))
    refuse_unknown("distributed.attention", unknown)
    function = asked_for({"score": score, "bias": bias, "alibi_slopes": alibi_slopes})
    extra = _extra((extra_keys, extra_values), function is not None or bool(dropout), layout)
    options: dict[str, Any] = {
        "scale": scale, "softcap": softcap, "backend": backend, "deterministic": deterministic
    }  # fmt: skip
    said = shards, strategy, link, sinks is not None, dropout, *options.values(), *_said(function, extra)
    whole = agreed((q, k, v), pattern, said, group)
    plan = planned(
        pattern, whole, heads=(q.shape[1], k.shape[1]), head_dim=(q.shape[3], v.shape[3]), strategy=strategy,
        dtype=str(q.dtype).removeprefix("torch."), ranks=dist.get_world_size(group), shards=shards, link=link,
    )  # fmt: skip
    at = Rank(plan, group, dist.get_rank(group), tuple(options.values()), function)
    _check_sizes(plan, at.rank, q)
    if dropout:
        at = replace(at, drop=dropping(dropout, seed, q, group))
    if plan.strategy in BY_HEADS:
        out, lse = BY_HEADS[plan.strategy](at, q, k, v, sinks, return_lse or extra is not None)
    else:
        out, lse = by_tokens(at, q, k, v, sinks)
    if extra is not None:
        more = weft.attention(q, *extra, weft.full(), return_lse=True, **options)
        out, lse = weft.merge([out, more[0]], [lse, more[1]])
    if layout == "bshd":
        out, lse = out.transpose(1, 2), lse.transpose(1, 2)
    return (out, lse) if return_lse else out


def _extra(given: tuple[Tensor | None, Tensor | None], by_index: bool, layout: str) -> tuple[Tensor, Tensor] | None:
    """Tokens that every query sees beside the sequence: each rank has them all."""
    keys, values = given
    if keys is None and values is None:
        return None
    if keys is None or values is None or by_index:
        raise OptionError(
            "distributed.attention(extra_keys=..., extra_values=...)",
            "extra keys have no index that score, bias or dropout could read" if by_index else "one of them is missing",
            "pass both, without score, bias, slopes and dropout",
        )  # fmt: skip
    return (keys.transpose(1, 2), values.transpose(1, 2)) if layout == "bshd" else (keys, values)


def _said(function: Any, extra: tuple[Tensor, Tensor] | None) -> tuple[Any, ...]:
    """What ranks compare of a score function and of extra keys."""
    told = () if function is None else (function.text, [tuple(x.shape) for x in function.tables])
    return *told, extra and extra[0].shape[2]


def _check_sizes(plan: Plan, rank: int, q: Tensor) -> None:
    held = len(plan.shards.tokens[rank])
    if q.shape[2] != held:
        raise InputError(
            "distributed.attention(q, k, v)", f"rank {rank} passed {q.shape[2]} tokens, and holds {held} of "
            f"{plan.shards.size} by {plan.shards}",
            "pass the tokens of the shard, or shards=[[(first, after)], ...] as they are held",
        )  # fmt: skip
