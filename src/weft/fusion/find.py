"""Each place of a traced graph where attention stands, in the graph's order.

It is written as a call of scaled_dot_product_attention, or as products joined by a softmax: transformers' interface
leaves one of the two in a graph. What is found is an `Attention` that may be replaced, or `Left` with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch.fx import Graph, Node

from weft.fusion.attention import SDPA, SOFTMAX, Attention, Left, Other, check, of_sdpa
from weft.fusion.grouped import without_repetition
from weft.fusion.nodes import Unsized, operation
from weft.fusion.products import joins_products, of_softmax


def found(graph: Graph) -> Iterator[Attention | Left]:
    """Each attention of a graph, read when it is its turn: those before it may have been replaced meanwhile."""
    for node in list(graph.nodes):
        what = "" if node._erased else operation(node)
        if what == "sdpa":
            yield _checked(node, SDPA, of_sdpa)
        elif what == "softmax" and joins_products(node):
            yield _checked(node, SOFTMAX, of_softmax)
        elif not node._erased and node.op == "call_function" and "flex_attention" in str(node.target):
            yield Left(node, "flex_attention", "FlexAttention's own kernels compute it")


def _checked(node: Node, form: str, read: Callable[[Node], Attention]) -> Attention | Left:
    try:
        attention = without_repetition(read(node))
        check(attention)
        return attention
    except (Other, Unsized) as reason:
        return Left(node, form, str(reason))
