"""Attention under torch.func: grad, vjp, jacrev and vmap, in any nesting.

It is an autograd.Function with `setup_context` and a rule for vmap, whose backward is another such function. Transforms
are peeled off one by one, and the innermost call reaches the operators. A mapped dimension is folded into the batch.
Where something else is mapped, or depends on the batch row, the calls follow each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import TransformType, peek_interpreter_stack

from weft.pattern.algebra import Pattern
from weft.score.value import expressions
from weft.torch.operator import DENSE, DERIVATIVES, Options, refusal

Found = tuple[Tensor, ...]
FOLDED = 3  # q, k, v come first among the tensors of a call


@dataclass(frozen=True, eq=False)
class Fixed:
    """What of a call is no tensor. options: without its tensors. wanted: which tables have gradients."""

    mask: Pattern
    options: Options
    wanted: tuple[bool, ...] = ()

    @property
    def by_row(self) -> bool:
        """Whether anything depends on the number of a batch row."""
        scores = any("b" in one.leaves for one in expressions(self.options.score))
        return bool(scores or self.options.dropout or self.mask.extent()[0] is not None)

    def chosen(self, rows: Sequence[Any], tables: Sequence[Tensor]) -> Options:
        """The options with sinks, slopes and seed, and with tables."""
        sinks, slopes, seed = rows
        return self.options._replace(sinks=sinks, slopes=slopes, seed=seed, tables=list(tables))

    def pattern(self) -> tuple[str, Tensor]:
        """As the operators take it."""
        return self.mask.structure, torch.from_numpy(self.mask.numbers)


def attend(tensors: Sequence[Tensor], mask: Pattern, options: Options) -> tuple[Tensor, Tensor]:
    """(out, lse) of a checked call while transforms are active."""
    if peek_interpreter_stack().key() == TransformType.Functionalize:
        raise refusal("torch.func.functionalize", "it has no rule for functions with gradients of their own", DENSE)
    plain = options._replace(sinks=None, slopes=None, seed=None, tables=())
    rows = options.sinks, options.slopes, options.seed
    out, lse = Forward.apply(*tensors, *rows, Fixed(mask, plain), *options.tables)
    return out, lse


class Forward(torch.autograd.Function):
    """q, k, v, sinks, slopes, seed, a Fixed, tables -> (out, lse)."""

    @staticmethod
    def forward(*args: Any) -> tuple[Tensor, Tensor]:
        q, k, v, *rows, fixed = args[:7]
        options = fixed.chosen(rows, args[7:])
        out, lse = torch.ops.weft.attention(q, k, v, *fixed.pattern(), *options, True)
        return out, lse

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        q, k, v, *rows, ctx.fixed = inputs[:7]
        ctx.save_for_backward(q, k, v, *output, *rows, *inputs[7:])

    @staticmethod
    def backward(ctx: Any, dout: Tensor, dlse: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse, sinks, slopes, seed, *tables = ctx.saved_tensors
        needed = ctx.needs_input_grad
        fixed = Fixed(ctx.fixed.mask, ctx.fixed.options, tuple(needed[7:]))
        kept = sinks if needed[3] else None  # lse has them in it
        given = (q, k, v, out, lse, dout, dlse, kept, slopes, seed, fixed, *tables)
        dq, dk, dv, dsinks, *dtables = Backward.apply(*given)
        rest = (x if w else None for x, w in zip(dtables, fixed.wanted, strict=True))
        return dq, dk, dv, dsinks if needed[3] else None, None, None, None, *rest

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> None:
        raise refusal("forward-mode differentiation", *DERIVATIVES)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
        fixed = args[6]
        folds = not fixed.by_row and all(dim is None for dim in in_dims[FOLDED:])
        return (_folded if folds else _one_by_one)(Forward.apply, (info.batch_size, FOLDED), in_dims, args)


class Backward(torch.autograd.Function):
    """q, k, v, out, lse, dout, dlse, sinks, slopes, seed, a Fixed, tables -> (dq, dk, dv, dsinks, gradients of tables).

    sinks: None unless their gradient is wanted.
    """

    @staticmethod
    def forward(*args: Any) -> Found:
        q, k, v, out, lse, dout, dlse, *rows, fixed = args[:11]
        tables = args[11:]
        saved = (q, k, v, out, lse, *fixed.pattern(), *fixed.chosen(rows, tables), list(fixed.wanted))
        dq, dk, dv, dsinks, dtables = torch.ops.weft.attention_backward(dout, dlse, *saved)
        return dq, dk, dv, dsinks, *dtables

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Found) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> None:
        raise refusal("double backward", *DERIVATIVES)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> None:
        raise refusal("forward-mode differentiation", *DERIVATIVES)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
        fixed, folded = args[10], 7  # tensors with batch rows
        sums = args[7] is not None or any(fixed.wanted)  # gradients that are sums over batch rows
        folds = not (fixed.by_row or sums) and all(dim is None for dim in in_dims[folded:])
        return (_folded if folds else _one_by_one)(Backward.apply, (info.batch_size, folded), in_dims, args)


def _folded(
    call: Callable[..., Found], sizes: tuple[int, int], in_dims: tuple[Any, ...], args: tuple[Any, ...]
) -> tuple[Any, Any]:
    """The mapped dimension as more batch rows of the first tensors."""
    count, folded = sizes
    tensors = [_first(x, dim, count).flatten(0, 1) for x, dim in zip(args[:folded], in_dims[:folded], strict=True)]
    rows = tensors[0].shape[0] // max(1, count)
    found = call(*tensors, *args[folded:])
    parts = tuple(x.unflatten(0, (count, rows)) if x.dim() > 1 else x.expand(count, *x.shape) for x in found)
    return parts, (0,) * len(parts)


def _first(x: Tensor, dim: int | None, count: int) -> Tensor:
    """A tensor with the mapped dimension first."""
    return x.expand(count, *x.shape) if dim is None else x.movedim(dim, 0)


def _one_by_one(
    call: Callable[..., Found], sizes: tuple[int, int], in_dims: tuple[Any, ...], args: tuple[Any, ...]
) -> tuple[Any, Any]:
    found = [
        call(*(x if dim is None else x.select(dim, i) for x, dim in zip(args, in_dims, strict=True)))
        for i in range(sizes[0])
    ]
    parts = tuple(torch.stack(xs) for xs in zip(*found, strict=True))
    return parts, (0,) * len(parts)
