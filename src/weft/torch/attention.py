"""`weft.attention`, `weft.plan` and `weft.explain` for torch tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._C import _is_any_autocast_enabled

from weft.errors import InputError
from weft.pattern.algebra import Pattern
from weft.planning.attention_plan import AttentionPlan
from weft.runtime.pipeline import compiled
from weft.torch import decode, eager
from weft.torch.inputs import check_choices, check_options, check_tensors, problem_of
from weft.torch.operator import Options, Written, numbers_of

# Asked once: torch 2.11 cannot trace the question.
AUTOCAST = frozenset(t for t in ("cpu", "cuda", "xpu", "mps", "hpu", "mtia") if torch.amp.is_autocast_available(t))


def attention(  # noqa: PLR0913 - the public face; every option by name
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Pattern,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    return_lse: bool = False,
    backend: str = "auto",
    deterministic: bool | None = None,
    dropout: float = 0,  # an int: torch.compile would make a symbol of a float
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention of q over the keys that `mask` lets each query see, at a cost that follows the live pairs.

    q (B, Hq, M, D), k (B, Hkv, N, D), v (B, Hkv, N, Dv), any strides, one floating dtype and device; Hq is a multiple
    of Hkv and query head h uses key head h // (Hq // Hkv). Returns out (B, Hq, M, Dv) in q's dtype and memory order;
    with return_lse also lse (B, Hq, M), the natural logarithm of the sum of exponentiated scores, in float32 (float64
    for float64). A query without keys gives out 0, lse -inf and zero gradients.

    The score of a pair is scale * (q . k), scale defaulting to D ** -0.5; then softcap * tanh(score / softcap); then,
    with alibi_slopes (Hq,), minus slope * |q - k| on aligned token indices. sinks (Hq,) are logits that join every
    row's sum and have no value; lse includes them. Reverse-mode gradients flow to q, k, v and sinks, and from lse.

    Raises InputError for tensors, OptionError for options, PatternError (AlignmentError, LengthError) for a mask that
    does not fit, UnsupportedError for what is refused by name (dropout, double backward, vmap), UnsupportedKernel if
    no backend can run it. Sources: Dao 2023, arXiv 2307.08691 (the online form); Press et al. 2022, arXiv 2108.12409
    (ALiBi).
    """
    compiling = torch.compiler.is_compiling()
    if compiling or _is_any_autocast_enabled():
        q, k, v = _autocast(q, k, v)
    rows, given = (sinks, alibi_slopes), (scale, softcap, dropout, backend, deterministic)
    mask = mask if compiling else _made(mask)
    step = None if compiling else _decoding((q, k, v), mask, rows, given)
    if step is not None:
        out, lse = step((q, k, v), *rows)
        return (out, lse) if return_lse else out
    key = None if compiling else eager.key_of(q, k, v, mask, rows, given)
    call = None if key is None else eager.find(key)
    if call is None:
        _check((q, k, v), mask, rows, given)
    if deterministic is None:
        deterministic = torch.are_deterministic_algorithms_enabled()
    chosen = (*rows, scale, softcap, backend, deterministic)
    if key is not None:
        call = call or eager.prepare(key, problem_of(q, k, v), mask, Options(*chosen))
        out, lse = eager.attend(call, (q, k, v), rows, deterministic, return_lse)
    else:
        out, lse = torch.ops.weft.attention(q, k, v, mask.structure, numbers_of(mask, q), *chosen, return_lse)
    return (out, lse) if return_lse else out


def _check(tensors: Any, mask: Any, rows: Any, given: Any) -> None:
    """Raise for what may not be passed; rows: sinks, slopes; given: the options, in the order of `attention`."""
    (sinks, slopes), (scale, softcap, dropout, backend, deterministic) = rows, given
    check_mask(mask)
    check_tensors(*tensors)
    options = {"scale": scale, "softcap": softcap, "dropout": dropout, "sinks": sinks, "alibi_slopes": slopes}
    check_options(tensors[0], options)
    check_choices(backend, deterministic)


def _decoding(tensors: Any, mask: Any, rows: Any, given: Any) -> Any:
    """The prepared step of decoding that answers a call, None if the call is no such step; see `weft.torch.decode`."""
    key = decode.key_of(tensors, mask, rows, given)
    if key is None:
        return None
    found = decode.find(key, tensors[1].shape[2])
    if found is None:
        _check(tensors, mask, rows, given)
        found = decode.prepare(key, tensors, mask, rows, given)
    return found.step


def _autocast(*tensors: Any) -> Any:
    """As autocast does for torch's own attention: float64, integers and what is no tensor stay as they are."""
    first = tensors[0]
    if not isinstance(first, Tensor) or first.device.type not in AUTOCAST:
        return tensors
    if not torch.is_autocast_enabled(first.device.type):
        return tensors
    dtype = torch.get_autocast_dtype(first.device.type)
    return tuple(x.to(dtype) if _is_cast(x) else x for x in tensors)


def _is_cast(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point() and x.dtype is not torch.float64


def plan(mask: Pattern, q: Tensor, k: Tensor, v: Tensor, *, backend: str = "auto") -> AttentionPlan:
    """The plan that `attention(q, k, v, mask)` would run: `.verify()`, `.interpret(q, k, v)`, `.explain()`, `str()`."""
    check_mask(mask, "plan")
    mask = _made(mask)
    check_tensors(q, k, v)
    check_choices(backend, None)
    return compiled(mask, problem_of(q, k, v), backend)[0]


def explain(mask: Pattern, q: Tensor, k: Tensor, v: Tensor, *, backend: str = "auto") -> str:
    """The pattern drawn, the bytes of its format, the plan and its predicted time, as text."""
    check_mask(mask, "explain")
    return plan(mask, q, k, v, backend=backend).explain()


def _made(mask: Any) -> Any:
    """A mask; one that a compiled function wrote down and gave away as the pattern it is."""
    return mask.pattern() if isinstance(mask, Written) else mask


def check_mask(mask: Any, function: str = "attention") -> None:
    """Raise InputError unless `mask` is a pattern (or one written down inside a compiled function); function: asked."""
    if isinstance(mask, (Pattern, Written)) and hasattr(mask, "structure"):
        return
    raise InputError(
        f"{function}(..., mask={type(mask).__name__})",
        "a mask is a weft pattern made by library functions, not a tensor, a function or a bare leaf",
        "build it from weft's patterns, e.g. weft.causal() & weft.window(left=1023), or give a boolean mask to "
        "weft.recognize(mask) and pass its .pattern",
    )
