"""Attention of DTensors: sharded over batch rows or heads each rank computes alone, over tokens ranks exchange."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard

from weft.errors import UnsupportedError
from weft.pattern.algebra import Pattern

AXES = {"bhsd": ("batch", "heads", "tokens"), "bshd": ("batch", "tokens", "heads")}
LEFT_OUT = ("score", "bias", "dropout", "seed", "extra_keys", "extra_values")
CURE = "redistribute q, k and v to Replicate() or Shard of one axis, or call weft.attention on local tensors"


def attention(tensors: Any, mask: Any, options: dict[str, Any]) -> Any:
    """`weft.attention` of DTensors q, k, v, placed alike; the result is placed as they are."""
    q, _, v = tensors
    _check(tensors, mask, options)
    mesh, placements, names = q.device_mesh, q.placements, AXES[options["layout"]]
    local = [x.to_local() for x in tensors]
    over, given = None, {name: x for name, x in options.items() if name not in LEFT_OUT}
    for dim, placed in enumerate(placements):
        if isinstance(placed, Replicate):
            continue
        axis, count, rank = placed.dim, mesh.size(dim), mesh.get_local_rank(dim)
        name = names[axis] if axis < 3 else "head dimension"
        if name == "heads":
            for row in ("sinks", "alibi_slopes"):
                if given[row] is not None:
                    given[row] = _rows(given[row], q.shape[axis] // count, rank)
        elif name == "tokens":
            over = dim, count
        for x, mine in zip(tensors, local, strict=True):
            _check_chunk(x.shape[axis], count, rank, mine.shape[axis])
    if over is None:
        from weft.torch.attention import attention as alone

        found: Any = alone(local[0], local[1], local[2], mask, **given)
    else:
        found = _over_tokens(local, mask, given, (mesh, *over), q.shape[names.index("tokens")])
    if isinstance(found, tuple):
        return tuple(_placed(x, q, v) for x in found)
    return _placed(found, q, v)


def _check(tensors: Any, mask: Any, options: dict[str, Any]) -> None:
    q, k, v = tensors
    if not all(isinstance(x, DTensor) for x in tensors):
        _refuse("some of q, k and v are DTensors", "the others are not", "make all of them DTensors of one mesh")
    if any(x.device_mesh != q.device_mesh or x.placements != q.placements for x in (k, v)):
        _refuse(
            "q, k and v that are placed differently", f"they are {q.placements}, {k.placements}, {v.placements}", CURE
        )
    if options["layout"] not in AXES or q.dim() != 4:
        _refuse(
            f"layout={options['layout']!r} of DTensors", "which axis is sharded is not known", 'use "bhsd" or "bshd"'
        )
    for name in LEFT_OUT:
        if options[name]:
            _refuse(f"{name}=...", "its indices are those of the whole tensor", CURE)
    if not isinstance(mask, Pattern) or mask.extent() != (None, None):
        _refuse(f"mask={type(mask).__name__}", "it may tell heads or batch rows apart", "pass a pattern that does not")
    names = AXES[options["layout"]]
    sharded = [x.dim for x in q.placements if isinstance(x, Shard)]
    if any(not isinstance(x, (Shard, Replicate)) for x in q.placements) or len(set(sharded)) < len(sharded):
        _refuse(f"placements {q.placements}", "they are neither whole nor shards of different axes", CURE)
    if any(axis > 2 for axis in sharded):
        _refuse(f"placements {q.placements}", "each rank has a part of every head's dimension", CURE)
    heads = names.index("heads")
    for dim, placed in enumerate(q.placements):
        count = q.device_mesh.size(dim)
        if isinstance(placed, Shard) and placed.dim == heads and any(x.shape[heads] % count for x in tensors):
            wrong = f"{q.shape[heads]} query heads and {k.shape[heads]} key heads do not divide over {count} ranks"
            _refuse(f"placements {q.placements}", wrong, CURE)


def _check_chunk(length: int, count: int, rank: int, found: int) -> None:
    """Raise where a rank does not hold the chunk that torch says: torch's own check accepts others."""
    size = -(-length // count)
    wanted = max(0, min(length, (rank + 1) * size) - min(length, rank * size))
    if found != wanted:
        _refuse(
            f"a shard of {found} of {length}", f"rank {rank} of {count} holds {wanted} by torch's chunks",
            "make it with distribute_tensor, or pass local tensors and shards=[[(first, after)], ...] to "
            "weft.distributed.attention",
        )  # fmt: skip


def _rows(x: Tensor, count: int, rank: int) -> Tensor:
    """A row of heads, of this rank's heads alone."""
    if isinstance(x, DTensor):
        return x.to_local() if any(isinstance(p, Shard) for p in x.placements) else x.to_local()[rank * count :][:count]
    return x[rank * count : (rank + 1) * count]


def _over_tokens(local: Any, mask: Pattern, given: dict[str, Any], where: tuple[Any, int, int], length: int) -> Any:
    """Attention over the ranks of one dimension of the mesh, each with torch's chunk of the tokens."""
    from weft.torch.distributed.call import attention as over_ranks

    mesh, dim, count = where
    size = -(-length // count)
    ends = [min(length, r * size) for r in range(count + 1)]
    shards = [[(a, b)] if a < b else [] for a, b in pairwise(ends)]
    return over_ranks(*local, mask, mesh=mesh, dim=dim, shards=shards, **given)


def _placed(x: Tensor, q: Any, v: Any) -> Any:
    """A result as a DTensor: out, or lse, which is out without its last axis."""
    shape = torch.Size((*q.shape[:3], v.shape[3])[: x.dim()])
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(x.contiguous(), q.device_mesh, q.placements, run_check=False, shape=shape, stride=stride)


def _refuse(asked: str, wrong: str, cure: str) -> NoReturn:
    raise UnsupportedError(f"attention({asked})", wrong, cure)
