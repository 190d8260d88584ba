"""Decoding over a cache that ranks hold together: each rank computes over its own keys, and results are merged."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import weft
from weft.errors import OptionError, UnsupportedError
from weft.pattern.algebra import Pattern
from weft.pattern.excerpt import excerpt
from weft.torch.distributed.groups import group_of
from weft.torch.distributed.ranks import Result


def decode_attention(  # noqa: PLR0913 - the public face; every option by name
    q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, *, first: int, total: int, group: Any = None, mesh: Any = None,
    dim: int | str = 0, scale: float | None = None, softcap: float | None = None, sinks: Tensor | None = None,
    return_lse: bool = False, backend: str = "auto",
) -> Tensor | Result:  # fmt: skip
    """Attention of the last tokens of a sequence, over a cache of which each rank holds a run of keys.

    - q (B, Hq, M, D): the last M of `total` tokens, the same on every rank. k (B, Hkv, n, D), v (B, Hkv, n, Dv): this
      rank's run of keys, tokens `first` to first + n. The runs of all ranks cover the sequence once; some may be empty.
    - pattern: on the indices of the whole sequence. Other options: as `weft.attention` has them.

    Returns out (B, Hq, M, Dv) on every rank, with return_lse also lse (B, Hq, M). B * Hq * M * (Dv + 1) numbers of each
    rank travel, whatever the length of the cache. Raises OptionError for ranges that do not fit, UnsupportedError where
    a gradient is asked for. Example::

        out = weft.distributed.decode_attention(q, k, v, weft.causal(), first=rank * 65536, total=8 * 65536)
    """
    group, count = group_of(group, mesh, dim, "decode_attention"), k.shape[2]
    if not 0 <= first <= first + count <= total or q.shape[2] > total:
        raise OptionError(
            f"distributed.decode_attention(first={first}, total={total})",
            f"{count} keys from there on, and {q.shape[2]} queries, are not within the sequence",
            "pass the place of this rank's first key and the number of tokens of all ranks",
        )  # fmt: skip
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        raise UnsupportedError(
            "distributed.decode_attention(...)", "it has no gradients",
            "call it under torch.no_grad(), or use weft.distributed.attention to train",
        )  # fmt: skip
    mine = excerpt(pattern, total, (total - q.shape[2], total), (first, first + count))
    # sinks join the sum once, on the rank that comes first in its group
    once = sinks if dist.get_rank(group) == 0 else None
    out, lse = weft.attention(q, k, v, mine, scale=scale, softcap=softcap, sinks=once, backend=backend, return_lse=True)
    outs, lses = ([torch.empty_like(x) for _ in range(dist.get_world_size(group))] for x in (out, lse))
    for every, x in ((outs, out), (lses, lse)):
        dist.all_gather(every, x.contiguous(), group=group)
    found = weft.merge(outs, lses)
    return found if return_lse else found[0]
