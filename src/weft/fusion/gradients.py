"""Gradients of products with what follows them, in torch's operations."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor

from weft.fusion.kernels import ProductSpec, ProjectionsSpec

aten = torch.ops.aten
F = torch.nn.functional
ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh")}
Gradients = list[Tensor | None]


def gradients(
    spec: ProductSpec | ProjectionsSpec, tensors: Sequence[Tensor], kept: Tensor | None, dout: Tensor
) -> Gradients:
    """Of the tensors that a kernel is given, in their order. dout: of its result (..., n).

    kept (1 or 2, ..., n): what is before the activation, of the product and then of its gate; None: it is computed
    again where it is needed. Tables of rotations have none.
    """
    if isinstance(spec, ProjectionsSpec):
        return _of_projections(spec, tensors, dout)
    return _of_product(spec, tensors, kept, dout)


def _of_product(spec: ProductSpec, tensors: Sequence[Tensor], kept: Tensor | None, dout: Tensor) -> Gradients:
    count = 1 + spec.gated
    x, weights = tensors[0], tensors[1 : 1 + count]
    biases = tensors[1 + count : 1 + 2 * count] if spec.biased else [None] * count
    if kept is not None:
        before = list(kept.unbind())
    elif spec.activation:
        before = [
            _product(x, w, b, spec.by_rows) for w, b in zip(weights, biases or [None] * len(weights), strict=True)
        ]
    else:
        before = []
    if spec.gated:
        value, gating = before
        slopes = [dout * ACTIVATIONS[spec.activation](gating), _before(spec.activation, dout * value, gating)]
    else:
        slopes = [_before(spec.activation, dout, before[0]) if before else dout]
    found = _of_weights(x, weights, slopes, spec.by_rows, spec.biased)
    return [*found, dout] if spec.residual else found


def _product(x: Tensor, weight: Tensor, bias: Tensor | None, by_rows: bool) -> Tensor:
    return F.linear(x, weight.t() if by_rows else weight, bias)


def _before(activation: str, dout: Tensor, x: Tensor) -> Tensor:
    """The gradient before an activation of x."""
    if activation == "relu":
        found: Tensor = aten.threshold_backward(dout, x, 0)
    elif activation == "silu":
        found = aten.silu_backward(dout, x)
    else:
        found = aten.gelu_backward(dout, x, approximate="tanh" if activation == "gelu_tanh" else "none")
    return found


def _of_weights(
    x: Tensor, weights: Sequence[Tensor], slopes: Sequence[Tensor], by_rows: bool, biased: bool
) -> Gradients:
    """Of x, of weights, and of biases where there are some. slopes: gradients of their products (..., n)."""
    rows = x.reshape(-1, x.shape[-1])
    flat = [slope.reshape(-1, slope.shape[-1]) for slope in slopes]
    parts = [slope @ (w.t() if by_rows else w) for w, slope in zip(weights, flat, strict=True)]
    of_x = reduce(torch.add, parts)
    of_weights = [rows.t() @ slope if by_rows else slope.t() @ rows for slope in flat]
    return [of_x.view(x.shape), *of_weights, *(slope.sum(0) for slope in flat if biased)]


# ---- query, key and value --------------------------------------------------------------------------------------------
def _of_projections(spec: ProjectionsSpec, tensors: Sequence[Tensor], dout: Tensor) -> Gradients:
    x, weights = tensors[0], tensors[1:4]
    slopes = list(dout.split([w.shape[1 if spec.by_rows else 0] for w in weights], -1))
    if spec.tables:
        slopes[:2] = [_turned_back(spec, slope, *tensors[-2:]) for slope in slopes[:2]]
    return [*_of_weights(x, weights, slopes, spec.by_rows, spec.biased), *[None] * (2 * spec.tables)]


def _turned_back(spec: ProjectionsSpec, slope: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The gradient before a rotation, by the transpose of what turns. slope (B, S, H * D), tables (1 or B, 1, S, D)."""
    heads = slope.unflatten(-1, (-1, spec.d))
    straight, turning = heads * cos.transpose(1, 2), heads * sin.transpose(1, 2)
    if spec.interleaved:
        first, second = turning[..., 0::2], turning[..., 1::2]
        back = torch.stack((second, -first), -1).flatten(-2)
    else:
        first, second = turning.chunk(2, -1)
        back = torch.cat((second, -first), -1)
    return (straight + back).flatten(2)
