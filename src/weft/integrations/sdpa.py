"""torch's scaled_dot_product_attention, computed by weft; and a context that puts it in the place of torch's.

A boolean mask is recognised, so that only its live pairs are computed. What weft does not serve is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling
from torch.overrides import TorchFunctionMode

import weft
from weft.errors import InputError, OptionError, WeftError
from weft.torch.remembered import Remembered

TORCHS: Callable[..., Tensor] = torch.nn.functional.scaled_dot_product_attention
HEADS: Any = torch.nn.functional.multi_head_attention_forward
FULL, CAUSAL = weft.full(), weft.causal(align="top-left")

_patterns: Remembered[Any] = Remembered()  # of masks that do not have a number for each pair


def scaled_dot_product_attention(  # noqa: PLR0913 - torch's signature
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """Attention with torch's arguments.

    - query (N, ..., Hq, L, E), key (N, ..., H, S, E), value (N, ..., H, S, Ev), of any rank from 2 on. Hq == H, or H
      is 1, or enable_gqa is True and H divides Hq.
    - attn_mask: broadcast to (N, ..., Hq, L, S). Booleans, True = may attend, are recognised once for a tensor and its
      version. Numbers are added to scores as a bias: every pair is computed, and gradients reach them.
    - dropout_p: the share of weights that is dropped. is_causal: key <= query, from the first of each; no mask beside.
    - scale: E ** -0.5 if None.

    Returns (N, ..., Hq, L, Ev). A query without keys gives 0, with zero gradients. Raises InputError for tensors,
    OptionError for options, UnsupportedError for what weft refuses by name, UnsupportedKernel where no backend can run
    the call. Example::

        out = scaled_dot_product_attention(q, k, v, attn_mask=booleans)
    """
    _check(query, key, value)
    if is_causal and attn_mask is not None:
        _wrong("attn_mask=..., is_causal=True", "torch takes one of them", "put causality into the mask", OptionError)
    q, k, v = _joined(query, key, value)
    if k.shape[1] not in (1, q.shape[1]) and not enable_gqa:
        wrong = f"query has {q.shape[1]} heads, key has {k.shape[1]}"
        _wrong(f"enable_gqa={enable_gqa}", wrong, "pass enable_gqa=True where heads share keys", OptionError)
    mask, bias = (CAUSAL if is_causal else FULL), None
    if attn_mask is not None:
        if not isinstance(attn_mask, Tensor) or not (attn_mask.dtype is torch.bool or attn_mask.is_floating_point()):
            said = getattr(attn_mask, "dtype", type(attn_mask).__name__)
            _wrong(f"attn_mask={said}", "a mask is booleans, or numbers that are added", "pass attn_mask.bool()")
        if attn_mask.dtype is torch.bool:
            mask = _mask(attn_mask, query, (q.shape[0], q.shape[1], q.shape[2], k.shape[2]))
        else:
            bias = _as_four(attn_mask, query)
    out = weft.attention(q, k, v, mask, bias=bias, dropout=dropout_p or 0, scale=scale)
    return out.reshape(*query.shape[:-1], v.shape[-1])


# ---- tensors of any rank ---------------------------------------------------------------------------------------------
def _check(query: Any, key: Any, value: Any) -> None:
    for name, x in (("query", query), ("key", key), ("value", value)):
        if not isinstance(x, Tensor):
            _wrong(f"{name}={type(x).__name__}", f"{name} is no tensor", "pass torch tensors")
        if x.is_nested or x.layout is not torch.strided:
            _wrong(f"{name}={x.layout}", f"{name} has no strides", "pass dense tensors, padded if need be")
        if x.dim() != query.dim() or x.dim() < 2:
            wrong = f"it has {x.dim()} dimensions, query has {query.dim()}"
            _wrong(f"{name}", wrong, "pass (..., heads, tokens, head dimension), two dimensions or more")


def _joined(query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
    """The three as (B, H, S, D); key and value are repeated, without a copy, where torch broadcasts them."""
    rank = query.dim()
    if rank == 4:
        lead = query.shape[:1]
        return [x if x.shape[:1] == lead else _expanded(x, lead) for x in (query, key, value)]
    if rank < 4:
        heads = query.shape[:-2]
        return [_expanded(x[(None,) * (4 - rank)].transpose(0, 1), heads or (1,)) for x in (query, key, value)]
    lead = query.shape[:-3]
    return [_expanded(x, lead).flatten(0, -4) for x in (query, key, value)]


def _expanded(x: Tensor, lead: Any) -> Tensor:
    """x with those first axes."""
    found = tuple(x.shape[: len(lead)])
    if any(n not in (1, m) for n, m in zip(found, lead, strict=True)):
        _wrong("query, key, value", f"batches are {tuple(lead)} and {found}", "give all three one batch size")
    return x.expand(*lead, *x.shape[len(lead) :])


def _as_four(mask: Tensor, query: Tensor) -> Tensor:
    """A mask as (B or 1, Hq or 1, L or 1, S or 1), in the axes that `_joined` makes."""
    rank = query.dim()
    if not 2 <= mask.dim() <= rank:
        _wrong("attn_mask", f"it has {mask.dim()} dimensions, query has {rank}", "pass one that broadcasts to scores")
    x = mask[(None,) * (max(rank, 3) - mask.dim())]
    if rank <= 3:
        return x.unsqueeze(1)
    return (
        x if rank == 4 else (_expanded(x, query.shape[:-3]) if any(n > 1 for n in x.shape[:-3]) else x).flatten(0, -4)
    )


# ---- booleans --------------------------------------------------------------------------------------------------------
def _mask(mask: Tensor, query: Tensor, sizes: tuple[int, int, int, int]) -> Any:
    """What weft.attention takes for a boolean mask: the tensor itself where it has an entry for each pair."""
    if is_compiling() or (query.dim() == 4 and tuple(mask.shape[-2:]) == sizes[2:]):
        return mask
    return _patterns.of(mask, sizes, lambda: pattern_of(_as_four(mask, query), sizes))


def pattern_of(mask: Tensor, sizes: tuple[int, int, int, int]) -> Any:
    """The pattern of booleans that broadcast to sizes: batch rows, heads, queries, keys."""
    if any(n not in (1, m) for n, m in zip(mask.shape, sizes, strict=True)):
        wrong = f"it is {tuple(mask.shape)} of scores {sizes}"
        _wrong("attn_mask", wrong, "pass booleans that broadcast to (batch, heads, queries, keys)")
    batch, _, m, n = sizes
    if mask.shape[1] == mask.shape[2] == 1:  # of keys alone: padding
        return weft.padding(mask=mask[:, 0, 0].expand(batch, n).contiguous())
    return weft.recognize(mask.expand(-1, -1, m, n)).pattern


# ---- in the place of torch's -----------------------------------------------------------------------------------------
class _InPlace(TorchFunctionMode):
    """Calls of torch's function go to another one. The module nn.MultiheadAttention reads torch's as a global of its
    function. So that one runs as a copy with other globals.
    """

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        names = {**vars(torch.nn.functional), TORCHS.__name__: function}
        del names["__name__"]  # by which torch.compile would find torch's own globals
        copy = FunctionType(HEADS.__code__, names, HEADS.__name__, HEADS.__defaults__, HEADS.__closure__)
        copy.__kwdefaults__ = HEADS.__kwdefaults__
        self.instead: dict[Any, Callable[..., Any]] = {TORCHS: function, HEADS: copy}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.instead.get(func, func)(*args, **(kwargs or {}))


class Served:
    """How many calls weft computed in a block."""

    calls = 0


@contextmanager
def in_place_of_torch() -> Iterator[Served]:
    """Put `scaled_dot_product_attention` in the place of torch's for a block of code, in this thread.

    Every call of torch's in the block is weft's, also where it was imported by name and inside nn.MultiheadAttention.
    What weft does not serve raises, and never goes to torch's. Yields `Served`, which counts the calls. Example::

        with in_place_of_torch() as served:
            loss = model(x).sum()
        print(served.calls)
    """
    served = Served()

    def counted(*args: Any, **kwargs: Any) -> Tensor:
        served.calls += 1
        return scaled_dot_product_attention(*args, **kwargs)

    with _InPlace(counted):
        yield served


def _wrong(asked: str, wrong: str, cure: str, kind: type[WeftError] = InputError) -> None:
    raise kind(f"scaled_dot_product_attention({asked})", wrong, cure)
