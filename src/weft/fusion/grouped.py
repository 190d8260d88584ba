"""Key heads that a graph repeats for groups of query heads: weft reads each of them once.

transformers' `repeat_kv` writes x[:, :, None].expand(B, Hkv, n, S, D).reshape(B, Hkv * n, S, D).
"""

from __future__ import annotations

import operator
from dataclasses import replace

import torch
from torch.fx import Node

from weft.fusion.attention import Attention
from weft.fusion.nodes import argument, operation, shape

ALL = slice(None, None, None)
INSERTED = ((ALL, ALL, None, ALL, ALL), (ALL, ALL, None))


def without_repetition(attention: Attention) -> Attention:
    """The same attention of keys and values as they were before they were repeated; itself where they were not."""
    key, turned = attention.key, tuple[Node, ...]()
    if attention.transposed and operation(key) == "transpose" and _is_last_two(key):
        key, turned = key.args[0], (key,)
    keys, values = _repeated(key), _repeated(attention.values)
    if keys is None or values is None or shape(keys[0])[1] != shape(values[0])[1]:
        return attention
    nodes = {*attention.inner, *keys[1:], *values[1:], *turned}
    places = {node: i for i, node in enumerate(attention.node.graph.nodes)}
    inner = tuple(sorted(nodes, key=places.__getitem__))
    return replace(
        attention, key=keys[0], values=values[0], inner=inner, transposed=attention.transposed and not turned
    )


def _is_last_two(node: Node) -> bool:
    axes = {axis % len(shape(node)) for axis in node.args[1:3] if isinstance(axis, int)}
    return axes == {len(shape(node)) - 2, len(shape(node)) - 1}


def _repeated(node: Node) -> tuple[Node, ...] | None:
    """(what is repeated, the nodes that repeat it); None where a node is no repetition of heads."""
    if node.target in ("repeat_interleave", torch.repeat_interleave):
        source, times = node.args[0], argument(node, 1, "repeats")
        if isinstance(source, Node) and isinstance(times, int) and argument(node, 2, "dim") == 1:
            return source, node
        return None
    if operation(node) != "reshape" or operation(node.args[0]) != "expand":
        return None
    wide = node.args[0]
    assert isinstance(wide, Node)
    inserted = wide.args[0]
    if not isinstance(inserted, Node) or inserted.target is not operator.getitem or inserted.args[1] not in INSERTED:
        return None
    source = inserted.args[0]
    if not isinstance(source, Node) or len(shape(source)) != 4 or len(shape(wide)) != 5:
        return None
    batch, heads, tokens, width = shape(source)
    times = shape(wide)[2]
    if shape(wide) != (batch, heads, times, tokens, width) or shape(node) != (batch, heads * times, tokens, width):
        return None
    return source, inserted, wide, node
