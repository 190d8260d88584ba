"""Attention in a traced graph, as a value; calls of scaled_dot_product_attention; what all forms must be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Node

from weft.fusion.nodes import argument, is_tensor, place, shape, value, writes_to

How = Literal["given", "add", "fill", "keep"]
SDPA, SOFTMAX = "scaled_dot_product_attention", "matmul, softmax, matmul"


@dataclass(frozen=True)
class MaskUse:
    """A mask and how the graph uses it. given: booleans that keep pairs, or numbers that are added, by its dtype; add:
    numbers; fill: booleans that take pairs out; keep: booleans that keep them.
    """

    node: Node
    how: How


@dataclass(frozen=True)
class Attention:
    """One attention that may be replaced. node: its result. inner: all nodes that go with it, in the graph's order.
    key: (..., N, D), as scaled_dot_product_attention takes it; (..., D, N) where `transposed`. sinks: (Hq,), logits
    that join each row. scale: None: D ** -0.5; a node: a
    number that the graph has only when it runs.
    """

    node: Node
    form: str
    query: Node
    key: Node
    values: Node
    masks: tuple[MaskUse, ...]
    scale: float | Node | None
    softcap: float | None
    inner: tuple[Node, ...]
    transposed: bool = False
    sinks: Node | None = None

    @property
    def where(self) -> str:
        return place(self.node)


@dataclass(frozen=True)
class Left:
    """Attention that stays as the graph has it, and why."""

    node: Node
    form: str
    reason: str

    @property
    def where(self) -> str:
        return place(self.node)


class Other(Exception):
    """The reason why attention stays."""


# ---- scaled_dot_product_attention ------------------------------------------------------------------------------------
def of_sdpa(node: Node) -> Attention:
    query, key, values = (argument(node, i, name) for i, name in enumerate(("query", "key", "value")))
    mask = argument(node, 3, "attn_mask")
    scale = argument(node, 6, "scale")
    if not all(is_tensor(x) for x in (query, key, values)):
        raise Other("its query, key or value is no tensor of the graph")
    if argument(node, 4, "dropout_p", 0.0) != 0:
        raise Other("it drops weights, and weft would draw others")
    if argument(node, 5, "is_causal", False) is not False:
        raise Other("it is causal without a mask, which torch's own kernels skip too")
    if mask is None:
        raise Other("it has no mask")
    if isinstance(scale, Node) and not isinstance(value(scale), torch.SymFloat):
        raise Other("its scale depends on sizes")
    scale = float(scale) if isinstance(scale, int | float) else scale
    return Attention(node, SDPA, query, key, values, (MaskUse(mask, "given"),), scale, None, (node,))


# ---- what all forms must be ------------------------------------------------------------------------------------------
def check(attention: Attention) -> None:
    """Raise Other unless weft could compute an attention."""
    query, key, values = (value(x) for x in (attention.query, attention.key, attention.values))
    if not all(isinstance(x, FakeTensor) for x in (query, key, values)):
        raise Other("its tensors are of a class of their own")
    if query.dim() not in (3, 4) or key.dim() != query.dim() or values.dim() != query.dim():
        raise Other(f"its query has {query.dim()} axes, and is not (batch, heads, tokens, width)")
    _check_sizes(attention)
    result = value(attention.node)
    if not (query.dtype == key.dtype == values.dtype == result.dtype) or not query.is_floating_point():
        raise Other("its query, key, value and result are of several types")
    if query.layout is not torch.strided or query.device.type not in ("cpu", "cuda"):
        raise Other(f"its tensors are on {query.device.type}")
    if any(value(use.node).requires_grad for use in attention.masks):
        raise Other("its mask has a gradient, so it is a bias")
    inside = set(attention.inner)
    nodes = list(attention.node.graph.nodes)
    between = nodes[nodes.index(attention.inner[0]) : nodes.index(attention.node)]
    if any(writes_to(node) for node in between if node not in inside):
        raise Other("the graph writes into memory while it is computed")


def _check_sizes(attention: Attention) -> None:
    """weft repeats key heads for groups of query heads, and nothing else."""
    query, key, values = (shape(x) for x in (attention.query, attention.key, attention.values))
    if attention.transposed:
        key = (*key[:-2], key[-1], key[-2])
    heads = (query[1], key[1], values[1]) if len(query) == 4 else (1, 1, 1)
    if not query[0] == key[0] == values[0] or heads[1] != heads[2] or heads[0] % max(1, heads[1]):
        raise Other("its key or value is broadcast over batch rows or heads")
    if query[-1] != key[-1] or key[-2] != values[-2]:
        raise Other("its query, key and value do not fit each other")
