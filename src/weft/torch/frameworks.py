"""What torch's tools ask of weft: fx keeps a call as a leaf, FlopCounterMode counts it, torch.load reads patterns."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.fx import Proxy
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from weft.errors import InputError, UnsupportedError
from weft.pattern import crossing
from weft.pattern.algebra import Pattern

# ---- torch.load(weights_only=True) -----------------------------------------------------------------------------------
torch.serialization.add_safe_globals([crossing.decode])  # what a pattern is pickled as: its structure and its numbers


# ---- torch.fx --------------------------------------------------------------------------------------------------------
def leaf(function: Callable[..., Any], args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    """A call of `function` as a node of the graph that is being traced; None if nothing is."""
    tracer = _tracer_of((args, tuple(options.values())))
    return None if tracer is None else tracer.create_proxy("call_function", function, args, dict(options))


def _tracer_of(x: Any) -> Any:
    if isinstance(x, (list, tuple)):
        for part in x:  # a generator would be more than Dynamo of torch 2.11 reads
            tracer = _tracer_of(part)
            if tracer is not None:
                return tracer
        return None
    return x.tracer if isinstance(x, Proxy) else None


def _as_attribute(pattern: Pattern, tracer: Any) -> Any:
    """A pattern as an attribute of the traced module, as fx keeps tensors."""
    root = getattr(tracer, "root", None)
    if root is None:
        raise InputError(
            f"trace {pattern} into a graph without a module", "the graph has no place for a pattern",
            "trace a torch.nn.Module that holds it",
        )  # fmt: skip
    held = [name for name, x in vars(root).items() if x is pattern]
    name = held[0] if held else next(n for i in range(len(vars(root)) + 1) if not hasattr(root, n := f"_pattern{i}"))
    setattr(root, name, pattern)
    return tracer.create_node("get_attr", name, (), {})


setattr(Pattern, "__fx_create_arg__", _as_attribute)  # noqa: B010 - the pattern floor knows no torch


# ---- torch.jit.script ------------------------------------------------------------------------------------------------
def refuse_script(named: Any) -> Any:
    """What `torch.jit.script` calls before it reads a function or a module: it cannot read these."""
    name = getattr(named, "__name__", type(named).__name__)
    raise UnsupportedError(
        f"torch.jit.script({name})", "TorchScript knows neither patterns nor keyword arguments with defaults",
        "write torch.compile(model, fullgraph=True), or torch.export for a model that is shipped",
    )  # fmt: skip


def unscriptable(function: Callable[..., Any]) -> None:
    """Let `torch.jit.script` say why it cannot read a function."""
    setattr(function, "__prepare_scriptable__", lambda: refuse_script(function))  # noqa: B010 - functions declare none


# ---- FlopCounterMode -------------------------------------------------------------------------------------------------
def follow_counters() -> None:
    """Let a FlopCounterMode that is on count weft's operators; its module takes long to import, and is not imported."""
    module = sys.modules.get("torch.utils.flop_counter")
    if module is None:
        return
    for operator, formula in FORMULAS.items():
        module.flop_registry.setdefault(operator, formula)
        for mode in _get_current_dispatch_mode_stack():
            counter = getattr(mode, "counter", None)
            if isinstance(counter, module.FlopCounterMode):
                counter.flop_registry.setdefault(operator, formula)


def live_pairs(pattern: Pattern, batch: int, heads: int, m: int, n: int) -> int:
    """Pairs of all batch rows and heads."""
    batches, told = (of or 1 for of in pattern.extent())
    counted = sum(pattern.acsr(m, n, b, h).nnz for b, h in np.ndindex(batches, told))
    return counted * (batch // batches) * (heads // told)


def _forward_flops(q: Tensor, k: Tensor, v: Tensor, structure: str, numbers: Tensor, *rest: Any, **out: Any) -> int:
    """Two operations for each number of two products, of live pairs alone: torch's convention."""
    return 2 * _pairs(q, k, structure, numbers) * (q.shape[3] + v.shape[3])


def _backward_flops(dout: Any, dlse: Any, q: Tensor, k: Tensor, v: Tensor, *saved: Any, **out: Any) -> int:
    """Five products, one of which is scores again: as torch counts its own."""
    structure, numbers = saved[2:4]
    return 2 * _pairs(q, k, structure, numbers) * (3 * q.shape[3] + 2 * v.shape[3])


def _pairs(q: Tensor, k: Tensor, structure: str, numbers: Tensor) -> int:
    record = getattr(numbers, "record", None)
    if record is None:
        if type(numbers) is not Tensor:
            raise UnsupportedError(
                "count the operations of weft.attention", "tensors are fake, and the pattern's numbers with them",
                "count with real tensors, or with torch.device('meta')",
            )  # fmt: skip
        record = numbers.numpy()
    pattern = crossing.decode(structure, record.tobytes())
    return live_pairs(pattern, q.shape[0], q.shape[1], q.shape[2], k.shape[2])


FORMULAS = {torch.ops.weft.attention: _forward_flops, torch.ops.weft.attention_backward: _backward_flops}
follow_counters()
