"""One call of attention on tensors of shape (B, H, S, D): checked and planned once, then found again by a key.

`weft.torch.attention` is the public face; what callers hold otherwise is translated by `weft.torch.translate`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active, _get_deterministic_algorithms, _is_any_autocast_enabled
from torch.compiler import is_compiling, is_dynamo_compiling, is_exporting

from weft.errors import InputError
from weft.pattern.algebra import Pattern
from weft.torch import decode, eager
from weft.torch.extras import Extras
from weft.torch.frameworks import follow_counters
from weft.torch.inputs import check_choices, check_options, check_tensors, problem_of
from weft.torch.operator import Options, Written, numbers_of

# Asked once: torch 2.11 cannot trace the question.
AUTOCAST = frozenset(t for t in ("cpu", "cuda", "xpu", "mps", "hpu", "mtia") if torch.amp.is_autocast_available(t))
Tensors = tuple[Tensor, Tensor, Tensor]


def attend(
    tensors: Tensors, mask: Any, rows: Any, given: Any, return_lse: bool, extras: Extras | None = None
) -> tuple[Tensor, Tensor]:
    """(out, lse) of q (B, Hq, M, D), k (B, Hkv, N, D) and v (B, Hkv, N, Dv). A lse that is not wanted may be anything.

    rows: sinks, slopes. given: scale, softcap, dropout, backend, deterministic, as the caller gave them. extras: score
    functions, biases, dropout.
    """
    if extras is not None or is_compiling():
        tensors = autocast(*tensors)
        _check(tensors, mask, rows, given)
        return _by_operator(tensors, mask, rows, given, return_lse, extras)
    if _is_any_autocast_enabled():
        tensors = autocast(*tensors)
    growing = decode.key_of(tensors, mask, rows, given)
    if growing is not None:
        step = _step(growing, tensors, mask, rows, given)
        if step is not None:
            out, lse = step(tensors, *rows)
            return out, lse
    key = eager.key_of(*tensors, mask, rows, given)
    call = None if key is None else eager.find(key)
    scale, softcap, _, backend, deterministic = given
    if call is None:
        _check(tensors, mask, rows, given)
        if key is None:
            return _by_operator(tensors, mask, rows, given, return_lse)
        call = eager.prepare(key, problem_of(*tensors), mask, Options(rows[0], rows[1], scale, softcap, backend, False))
    if deterministic is None:
        deterministic = _get_deterministic_algorithms()
    return eager.attend(call, tensors, rows, deterministic, return_lse)


def backward(
    saved: tuple[Tensor, ...], mask: Any, options: tuple[Any, Any], grads: tuple[Tensor | None, Tensor | None],
    wanted: bool, extras: Extras | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    """(dq, dk, dv, dsinks, dtables) of a call of `attend`. saved: q, k, v, out, lse; the last two may be of
    more keys, whose gradients are other calls. options: rows, given; wanted: whether that of sinks is.
    """
    (sinks, slopes), given = options
    tensors = (saved[0], saved[1], saved[2])
    scale, softcap, _, backend, deterministic = given
    if deterministic is None:
        deterministic = _get_deterministic_algorithms()
    if extras is not None:
        rest = (sinks if wanted else None, slopes, scale, softcap, backend, deterministic, *extras)
        learned = [x.requires_grad for x in extras.tables]
        numbers = numbers_of(mask, tensors[0])
        found = torch.ops.weft.attention_backward(*grads, *saved, mask.structure, numbers, *rest, learned)
        return *found[:3], found[3] if wanted else None, found[4]
    key = eager.key_of(*tensors, mask, (sinks, slopes), given)
    call = None if key is None else eager.find(key)
    if call is None:
        chosen = Options(sinks, slopes, scale, softcap, backend, False)
        call = eager.prepare(key, problem_of(*tensors), mask, chosen)
    return *eager.backward(call, list(saved), (sinks if wanted else None, slopes), grads, deterministic), ()


def _by_operator(
    tensors: Tensors, mask: Any, rows: Any, given: Any, return_lse: bool, extras: Extras | None = None
) -> tuple[Tensor, Tensor]:
    """A checked call for whoever reads or rewrites operators."""
    scale, softcap, _, backend, deterministic = given
    if deterministic is None:
        deterministic = torch.are_deterministic_algorithms_enabled()
    if not is_compiling():
        follow_counters()
        if _are_functorch_transforms_active():
            return _transformed(tensors, mask, rows, (scale, softcap, backend, deterministic), extras)
    # in a graph of torch.compile the expression is data too; an exported one shows it
    structure = "" if is_dynamo_compiling() and not is_exporting() and hasattr(mask, "tensor") else mask.structure
    # constants of the code: a graph would take a global's 0.0 for an input
    score, tables, dropout, seed = ("", (), 0.0, None) if extras is None else extras
    chosen = (*rows, scale, softcap, backend, deterministic, score, tables, dropout, seed)
    out, lse = torch.ops.weft.attention(*tensors, structure, numbers_of(mask, tensors[0]), *chosen, return_lse)
    return out, lse


def _transformed(tensors: Tensors, mask: Any, rows: Any, chosen: Any, extras: Extras | None) -> tuple[Tensor, Tensor]:
    """Under torch.func; loaded when it is first asked for."""
    from weft.torch import transforms

    return transforms.attend(tensors, mask, Options(*rows, *chosen, *(() if extras is None else extras)))


def _check(tensors: Any, mask: Any, rows: Any, given: Any) -> None:
    """Raise for what may not be passed; rows: sinks, slopes; given: the options, in the order of `attention`."""
    (sinks, slopes), (scale, softcap, dropout, backend, deterministic) = rows, given
    check_mask(mask)
    check_tensors(*tensors)
    options = {"scale": scale, "softcap": softcap, "dropout": dropout, "sinks": sinks, "alibi_slopes": slopes}
    check_options(tensors[0], options)
    check_choices(backend, deterministic)


def _step(key: Any, tensors: Any, mask: Any, rows: Any, given: Any) -> Any:
    """The prepared step of decoding of that key, None if the call is no such step; see `weft.torch.decode`."""
    found = decode.find(key, tensors[1].shape[2])
    if found is None:
        _check(tensors, mask, rows, given)
        found = decode.prepare(key, tensors, mask, rows, given)
    return found.step


def autocast(*tensors: Any) -> Any:
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


def unwrapped(mask: Any) -> Any:
    """What `weft.recognize` returned as its pattern, anything else as it is; recognition takes long to import."""
    if isinstance(mask, (Pattern, Tensor)) or not hasattr(mask, "proof"):
        return mask
    return mask.pattern


def check_mask(mask: Any, function: str = "attention") -> None:
    """Raise InputError unless `mask` is a pattern (or one written down inside a compiled function); function: asked."""
    if isinstance(mask, (Pattern, Written)) and hasattr(mask, "structure"):
        return
    if mask is None:
        raise InputError(
            f"{function}(..., mask=None)", "no mask says which query may see which key",
            "pass a pattern, e.g. weft.causal(), or weft.full() where every query sees every key",
        )  # fmt: skip
    raise InputError(
        f"{function}(..., mask={type(mask).__name__})",
        "it is no pattern that weft's functions made (a bare leaf is none)",
        "build it from weft's patterns, e.g. weft.causal() & weft.window(left=1023); of a boolean mask or a mask "
        "function pass weft.recognize(mask).pattern",
    )
