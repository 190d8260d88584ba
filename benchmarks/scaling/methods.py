"""Ways to compute a layer over ranks: weft's, and those of others, which are written here on torch's own parts."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import weft
from weft.distributed.plan import Plan, planned
from weft.pattern.algebra import Pattern
from weft.torch.blockmask import kinds_of_blocks, ordered
from weft.torch.distributed.by_heads import by_heads
from weft.torch.distributed.by_tokens import by_tokens
from weft.torch.distributed.ranks import Rank
from weft.torch.mask_mod import mask_mod_of

from .layers import Layer

Call = Callable[[Tensor, Tensor, Tensor], Tensor]
BLOCK = 128


def plan_of(layer: Layer, ranks: int, strategy: str | None = None, shards: str | None = None) -> Plan:
    return planned(
        layer.pattern(ranks), layer.tokens(ranks), heads=layer.heads, head_dim=(layer.dim, layer.dim),
        dtype=layer.dtype, ranks=ranks, shards=shards or layer.shards, strategy=strategy,
    )  # fmt: skip


def by_weft(plan: Plan) -> Call:
    """The public call."""

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return weft.distributed.attention(q, k, v, plan.pattern, shards=_shards(plan), strategy=plan.strategy)

    return call


def _shards(plan: Plan) -> str:
    return "x".join(map(str, plan.shards.split)) if plan.shards.split else plan.shards.kind


def as_rank(plan: Plan, rank: int) -> Call:
    """What one rank computes, for a process that is alone: exchanges are those of `timing.Arrived`."""
    at = Rank(plan, None, rank, (None, None, "auto", None))
    if plan.strategy == "ulysses":
        return lambda q, k, v: by_heads(at, q, k, v, None, False)[0]
    return lambda q, k, v: by_tokens(at, q, k, v, None)[0]


# ---- FlexAttention ---------------------------------------------------------------------------------------------------
@cache
def _flex() -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)


def flex_of(pattern: Pattern, tokens: int, q_tokens: Any, k_tokens: Any, device: torch.device) -> Call:
    """FlexAttention of rows of a sequence over keys of it. q_tokens, k_tokens: numpy indices, whole blocks of 128; as
    PyTorch's context parallelism, which looks them up in tensors, or adds an offset where they are one run.
    """
    from torch.nn.attention.flex_attention import BlockMask

    mod = mask_mod_of(pattern, tokens, tokens, device)
    partial, full = _blocks(pattern, tokens)
    rows, keys = q_tokens[::BLOCK] // BLOCK, k_tokens[::BLOCK] // BLOCK
    # FlexAttention reads indices as if they were contiguous, whatever their strides
    chosen = [np.ascontiguousarray(x[np.ix_(rows, keys)]) for x in (partial, full)]
    blocks = [torch.from_numpy(x).to(device)[None, None] for x in chosen]
    (of_q, of_k) = (_positions(x, device) for x in (q_tokens, k_tokens))
    mask = BlockMask.from_kv_blocks(
        *ordered(blocks[0]), *ordered(blocks[1]), BLOCK_SIZE=(BLOCK, BLOCK), seq_lengths=(len(q_tokens), len(k_tokens)),
        mask_mod=lambda b, h, q, k: mod(b, h, of_q(q), of_k(k)),
    )  # fmt: skip
    if device.type == "cpu":  # where FlexAttention has no backward
        live = mask.mask_mod(0, 0, torch.arange(len(q_tokens))[:, None], torch.arange(len(k_tokens))[None])
        return lambda q, k, v: scaled_dot_product_attention(q, k, v, attn_mask=live, enable_gqa=True)
    return lambda q, k, v: _flex()(q, k, v, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1])


def _blocks(pattern: Pattern, tokens: int) -> tuple[Any, Any]:
    """(partial, full) blocks of a whole sequence; kept on disk, since they take seconds, for the other ranks."""
    name = hashlib.sha256(f"{pattern} {tokens}".encode()).hexdigest()[:16]
    path = Path(tempfile.gettempdir(), f"blocks-{os.getuid()}-{name}.npz")
    if not path.exists():
        partial, full = (x[0, 0] for x in kinds_of_blocks(pattern, (tokens, tokens), (BLOCK, BLOCK)))
        mine = path.with_suffix(f".{os.getpid()}.npz")
        np.savez(mine, partial=partial, full=full)
        mine.replace(path)
    kept = np.load(path)
    return kept["partial"], kept["full"]


def _positions(tokens: Any, device: torch.device) -> Callable[[Any], Any]:
    if tokens[-1] - tokens[0] + 1 == len(tokens):
        first = int(tokens[0])
        return lambda i: i + first
    table = torch.as_tensor(tokens, device=device)
    return lambda i: table[i]


class _Gather(torch.autograd.Function):
    """All tokens of k or v from all ranks; gradients are added by reduce-scatter, as PyTorch does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        world = dist.get_world_size()
        whole = x.new_empty((world * x.shape[0], *x.shape[1:]))
        dist.all_gather_into_tensor(whole, x.contiguous())
        return torch.cat(whole.chunk(world), dim=2)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        world = dist.get_world_size()
        parts = torch.cat(grad.chunk(world, dim=2))
        mine = torch.empty_like(parts.chunk(world)[0])
        dist.reduce_scatter_tensor(mine, parts)
        return mine


def gathered(inner: Call) -> Call:
    """Context parallelism by all-gather, as PyTorch's; its own operator returns the gradient of k for that of v."""
    return lambda q, k, v: inner(q, _Gather.apply(k), _Gather.apply(v))


class _Turn(torch.autograd.Function):
    """(B, H, S / P, D) -> (B, H / P, S, D), or back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, to_heads: bool) -> Any:
        ctx.to_heads = to_heads
        return _turned(x, to_heads)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return _turned(grad, not ctx.to_heads), None


def _turned(x: Tensor, to_heads: bool) -> Tensor:
    sent = torch.stack(x.chunk(dist.get_world_size(), dim=1 if to_heads else 2))
    came = torch.empty_like(sent)
    dist.all_to_all_single(came, sent)
    return torch.cat(came.unbind(0), dim=2 if to_heads else 1)


def by_heads_of(inner: Call) -> Call:
    """Ulysses around a layer of the whole sequence."""

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return _Turn.apply(inner(*(_Turn.apply(x, True) for x in (q, k, v))), False)

    return call
