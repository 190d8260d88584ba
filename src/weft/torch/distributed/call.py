"""Attention over a sequence that the ranks of a process group hold together, on torch tensors."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from weft.distributed.plan import Plan, planned
from weft.errors import InputError, OptionError
from weft.pattern.algebra import Pattern
from weft.torch.call import autocast
from weft.torch.distributed.agreement import agreed
from weft.torch.distributed.by_heads import by_heads
from weft.torch.distributed.by_tokens import by_tokens
from weft.torch.distributed.ranks import Rank, Result

LAYOUTS = ("bhsd", "bshd")


@torch.compiler.disable  # type: ignore[untyped-decorator]  # a compiled caller breaks its graph here
def attention(  # noqa: PLR0913 - the public face; every option by name
    q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, *, group: Any = None, mesh: Any = None, dim: int | str = 0,
    shards: Any = "contiguous", strategy: str | None = None, scale: float | None = None, softcap: float | None = None,
    sinks: Tensor | None = None, return_lse: bool = False, backend: str = "auto", deterministic: bool | None = None,
    layout: str = "bhsd",
) -> Tensor | Result:  # fmt: skip
    """`weft.attention` of a sequence of which each rank holds some tokens; called by all ranks of a group alike.

    - q (B, Hq, S, D), k (B, Hkv, S, D), v (B, Hkv, S, Dv): this rank's tokens, in ascending order; "bshd": heads after
      tokens. pattern: on the indices of the whole sequence.
    - group: a ProcessGroup, None: the default one; or mesh and dim: a DeviceMesh and one of its dimensions.
    - shards, strategy: see `weft.distributed.plan`. The other options are those of `weft.attention`; sinks are the same
      on all ranks, and their gradient is of this rank's rows alone: add it up as any replicated parameter's.

    Returns out for this rank's tokens, as `weft.attention` does. Gradients of k and v come back to the ranks that hold
    them, and are added in float32 in the order of ranks.

    Raises InputError where ranks disagree about anything (compared once for each kind of call), OptionError for shards
    that do not fit. Example::

        out = weft.distributed.attention(q, k, v, weft.causal() & weft.window(left=1023), group=group)
    """
    group = _group(group, mesh, dim)
    if layout not in LAYOUTS:
        raise OptionError(
            f"distributed.attention(layout={layout!r})", f"it is none of {', '.join(LAYOUTS)}", "pass one of them"
        )
    q, k, v = autocast(*(x.transpose(1, 2) if layout == "bshd" else x for x in (q, k, v)))
    options = {"scale": scale, "softcap": softcap, "backend": backend, "deterministic": deterministic}
    whole = agreed((q, k, v), pattern, (shards, strategy, sinks is not None, *options.values()), group)
    plan = planned(
        pattern, whole, heads=(q.shape[1], k.shape[1]), head_dim=(q.shape[3], v.shape[3]), strategy=strategy,
        dtype=str(q.dtype).removeprefix("torch."), ranks=dist.get_world_size(group), shards=shards,
    )  # fmt: skip
    at = Rank(plan, group, dist.get_rank(group), tuple(options.values()))
    _check_sizes(plan, at.rank, q)
    if plan.strategy == "ulysses":
        out, lse = by_heads(at, q, k, v, sinks, return_lse)
    else:
        out, lse = by_tokens(at, q, k, v, sinks)
    if layout == "bshd":
        out, lse = out.transpose(1, 2), lse.transpose(1, 2)
    return (out, lse) if return_lse else out


def _group(group: Any, mesh: Any, dim: int | str) -> Any:
    if mesh is not None:
        if group is not None:
            raise OptionError(
                "distributed.attention(group=..., mesh=...)",
                "both say which ranks hold the sequence",
                "pass one of them",
            )
        return mesh.get_group(dim)
    if not dist.is_initialized():
        raise OptionError(
            "distributed.attention(...)", "there is no process group",
            'call torch.distributed.init_process_group("nccl") first ("gloo" on CPUs), or use weft.attention',
        )  # fmt: skip
    return dist.group.WORLD if group is None else group


def _check_sizes(plan: Plan, rank: int, q: Tensor) -> None:
    held = len(plan.shards.tokens[rank])
    if q.shape[2] != held:
        raise InputError(
            "distributed.attention(q, k, v)", f"rank {rank} passed {q.shape[2]} tokens, and holds {held} of "
            f"{plan.shards.size} by {plan.shards}",
            "pass the tokens of the shard, or shards=[[(first, after)], ...] as they are held",
        )  # fmt: skip
