"""Parts of a traced graph as graphs of their own: how a mask is computed, and one attention as it stands."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.fx import Graph, GraphModule, Node

from weft.fusion.attention import Attention
from weft.fusion.nodes import is_number, is_tensor, owner, value, writes_to

F = torch.nn.functional

# What masks are made by. Each gives the same result whenever it is computed, and changes nothing.
PURE_FUNCTIONS = frozenset((
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.neg,
    operator.and_, operator.or_, operator.xor, operator.invert, operator.not_, operator.eq, operator.ne, operator.lt,
    operator.le, operator.gt, operator.ge, operator.getitem, operator.abs, operator.lshift, operator.rshift,
    torch.arange, torch.ones, torch.zeros, torch.full, torch.ones_like, torch.zeros_like, torch.full_like, torch.eye,
    torch.tensor, torch.where, torch.tril, torch.triu, torch.logical_and, torch.logical_or, torch.logical_not,
    torch.logical_xor, torch.bitwise_and, torch.bitwise_or, torch.bitwise_not, torch.eq, torch.ne, torch.lt, torch.le,
    torch.gt, torch.ge, torch.abs, torch.add, torch.sub, torch.mul, torch.div, torch.cat, torch.stack, torch.cumsum,
    torch.masked_fill, torch.unsqueeze, torch.squeeze, torch.reshape, torch.transpose, torch.permute, torch.minimum,
    torch.maximum, torch.clamp, torch.remainder, torch.floor_divide, torch.broadcast_to, torch.flip, torch.roll,
    torch.repeat_interleave, torch.kron, torch.block_diag, torch.isin, torch.any, torch.all, F.pad, F.one_hot,
    torch._C._nn.pad, torch.sym_max, torch.sym_min, torch.sym_not,
))  # fmt: skip
PURE_METHODS = frozenset((
    "expand", "expand_as", "view", "view_as", "reshape", "unsqueeze", "squeeze", "transpose", "permute", "flatten",
    "contiguous", "clone", "detach", "to", "type", "type_as", "bool", "float", "half", "bfloat16", "double", "int",
    "long", "tril", "triu", "masked_fill", "new_ones", "new_zeros", "new_full", "new_tensor", "logical_not",
    "logical_and", "logical_or", "eq", "ne", "lt", "le", "gt", "ge", "add", "sub", "mul", "div", "abs", "neg", "where",
    "repeat", "repeat_interleave", "cumsum", "any", "all", "sum", "flip", "roll", "clamp", "diff",
    "size", "dim", "floor_divide", "remainder", "broadcast_to", "bitwise_and", "bitwise_or", "bitwise_not", "t",
))  # fmt: skip


@dataclass(frozen=True)
class Part:
    """A part of a graph as a module: module(*tensors, *numbers) gives one result, or a tuple.

    tensors, numbers: the nodes of the whole graph that it reads: tensors, and integers of sizes.
    """

    module: GraphModule
    tensors: tuple[Node, ...]
    numbers: tuple[Node, ...]


def is_input(node: Node) -> bool:
    """Whether a node is there before the graph runs."""
    return node.op in ("placeholder", "get_attr")


def masks_of(attention: Attention) -> Part | str:
    """How the masks of an attention are computed from inputs of the graph, or why that is not known."""
    outputs = [use.node for use in attention.masks]
    inside: set[Node] = set()
    read: set[Node] = set()
    waiting = list(outputs)
    while waiting:
        node = waiting.pop()
        if node in inside or node in read:
            continue
        if is_input(node) or is_number(node):
            read.add(node)
        elif is_pure(node):
            inside.add(node)
            waiting += node.all_input_nodes
        else:
            return f"its mask comes of {_called(node)}, so its values are known only when the graph runs"
    changed = _changed(attention.node.graph, inside | read)
    if changed is not None:
        return f"the graph writes into what its mask is made of, by {_called(changed)}"
    if any(is_tensor(node) and _requires_grad(node) for node in read):
        return "its mask has a gradient, so it is a bias"
    order = [node for node in attention.node.graph.nodes if node in inside]
    return _part(order, [node for node in attention.node.graph.nodes if node in read], outputs)


def decomposed(attention: Attention, numbers: Sequence[Node]) -> Part | str:
    """One attention as the graph computes it. It is of query, key, values, sinks if it has, its masks, then `numbers`
    and its own, and a scale that is a node."""
    masks = [use.node for use in attention.masks]
    sinks = [] if attention.sinks is None else [attention.sinks]
    tensors = [attention.query, attention.key, attention.values, *sinks, *masks]
    own = list(numbers)
    for node in attention.inner:
        for one in node.all_input_nodes:
            if one in attention.inner or one in tensors or one in own or one is attention.scale:
                continue
            if not is_number(one):
                return f"its scores are computed with {one.name} too"
            own.append(one)
    graph, known = Graph(), dict[Node, Node]()
    for i, node in enumerate(tensors):
        given = graph.placeholder(f"t{i}")  # one for each, also where query and key are one tensor
        if node is attention.key and i == 1 and attention.transposed:
            given = graph.call_method("transpose", (given, -2, -1))
        known.setdefault(node, given)
    for i, node in enumerate(own):
        known[node] = graph.placeholder(f"n{i}")
    if isinstance(attention.scale, Node):
        known[attention.scale] = graph.placeholder("scale")
    for node in attention.inner:
        known[node] = graph.node_copy(node, known.__getitem__)
    graph.output(known[attention.node])
    return Part(_module(graph, attention.node), tuple(tensors), tuple(own))


def is_pure(node: Node) -> bool:
    """Whether a node gives the same whenever it is computed from the same, and writes nowhere."""
    if writes_to(node) or node.kwargs.get("generator") is not None:
        return False
    if node.op == "call_function":
        return node.target in PURE_FUNCTIONS
    return node.op == "call_method" and node.target in PURE_METHODS


def _part(order: Sequence[Node], read: Sequence[Node], outputs: Sequence[Node]) -> Part:
    tensors, numbers = [n for n in read if not is_number(n)], [n for n in read if is_number(n)]
    graph, known = Graph(), dict[Node, Node]()
    for prefix, nodes in (("t", tensors), ("n", numbers)):
        for i, node in enumerate(nodes):
            known[node] = graph.placeholder(f"{prefix}{i}")
    for node in order:
        known[node] = graph.node_copy(node, known.__getitem__)
    graph.output(tuple(known[node] for node in outputs))
    return Part(_module(graph, outputs[0]), tuple(tensors), tuple(numbers))


def _module(graph: Graph, node: Node) -> GraphModule:
    """A graph as a module that holds what the whole graph's module holds, without what Dynamo noted at each node."""
    for one in graph.nodes:
        one.meta.clear()
        one.type = None
    return GraphModule(node.graph.owning_module or torch.nn.Module(), graph)


def _changed(graph: Graph, nodes: set[Node]) -> Node | None:
    """The first node that writes into the memory of one of these."""
    owners = {owner(node) for node in nodes} | nodes
    for node in graph.nodes:
        if any(target in owners or owner(target) in owners for target in writes_to(node)):
            return node
    return None


def _requires_grad(node: Node) -> bool:
    return bool(getattr(value(node), "requires_grad", False))


def _called(node: Node) -> str:
    return str(node.target if node.op == "call_method" else getattr(node.target, "__name__", node.target))
