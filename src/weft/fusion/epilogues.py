"""Products of a traced graph with what follows them: activations, gates, residuals; and attention's three products.

An activation is known by its values, however it is written: what follows a product is computed at some numbers, and
compared with `weft.kernels.gpu.gemm.meaning`.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch.fx import Graph, GraphModule, Node

from weft.fusion.kernels import ProductSpec, ProjectionsSpec
from weft.fusion.nodes import argument, is_tensor, operation, place, value, writes_to
from weft.kernels.gpu.gemm import meaning

F = torch.nn.functional
POINTWISE = frozenset(("add", "sub", "mul", "div", "tanh", "gelu", "silu", "relu", "cast"))
POINTWISE_TARGETS = frozenset((
    torch.pow, operator.pow, "pow", "__pow__", torch.sigmoid, "sigmoid", F.sigmoid, torch.erf, "erf", torch.exp, "exp",
    operator.neg, torch.neg, "neg", "square", torch.square, "tanh", torch.special.erf, torch.relu, "relu",
))  # fmt: skip
LONGEST = 16  # operations of an activation
SAMPLES = torch.linspace(-9, 9, 1009, dtype=torch.float64)
NEAR = 1e-5  # apart, below which two functions are one; GELU and its form by tanh are 5e-4 apart


@dataclass(frozen=True)
class Found:
    """A part of a graph that one kernel computes. inner: its nodes, in the graph's order. inputs: tensors, as the
    kernel takes them. outputs: nodes that others read. after: views between the product and an output, to be taken of
    the kernel's result.
    """

    spec: ProductSpec | ProjectionsSpec
    inner: tuple[Node, ...]
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    after: tuple[Node, ...] = ()

    @property
    def where(self) -> str:
        """The module that it comes from, and what it is."""
        products = [node for node in self.inner if is_product(node)]
        names = [place(node).rpartition(".")[2] or "product" for node in products]
        said = self.spec.activation if isinstance(self.spec, ProductSpec) else "rope" if self.spec.tables else ""
        rest = [said, "residual" if isinstance(self.spec, ProductSpec) and self.spec.residual else ""]
        return f"{place(products[0]).rpartition('.')[0]}: {', '.join([*names, *filter(None, rest)])}"

    def first_use(self, order: dict[Node, int]) -> Node:
        """The first node that reads an output, before which the kernel stands."""
        inside = set(self.inner)
        users = [user for node in self.outputs for user in node.users if user not in inside]
        return min(users, key=order.__getitem__)

    @cached_property
    def unfused(self) -> GraphModule:
        """(*inputs) -> the outputs as the graph has them, without the views in `after`; then what is kept."""
        graph, known = Graph(), dict[Node, Node]()
        for i, node in enumerate(self.inputs):
            known[node] = graph.placeholder(f"t{i}")
        for node in self.inner:
            first = node.args[0] if node.args else None
            if node in self.after and isinstance(first, Node):
                known[node] = known[first]
            else:
                known[node] = graph.node_copy(node, known.__getitem__)
        graph.output(tuple(known[node] for node in (*self.outputs, *self.kept)))
        return GraphModule(torch.nn.Module(), anonymous(graph))

    @property
    def kept(self) -> tuple[Node, ...]:
        """What is before an activation, of the product and then of its gate, where the kernel keeps it."""
        if not (isinstance(self.spec, ProductSpec) and self.spec.keeps):
            return ()
        by_weight = {weight_of(node): node for node in self.inner if is_product(node)}
        return tuple(by_weight[weight] for weight in self.inputs[1 : 2 + self.spec.gated])


def anonymous(graph: Graph) -> Graph:
    """A graph whose text is the same wherever it was taken from: nodes are numbered, and know no modules."""
    for i, node in enumerate(graph.nodes):
        node.meta.clear()
        node.type = None
        if node.op not in ("placeholder", "output"):
            node._rename(f"x{i}")
    return graph


def is_product(node: Node) -> bool:
    """Whether a node is a product with a weight, and perhaps a bias, that the model holds."""
    if node.op != "call_function" or node.target not in (F.linear, torch.addmm):
        return False
    tensors = [x for x in (weight_of(node), bias_of(node)) if x is not None]
    plain = not set(node.kwargs) - {"bias", "weight"}
    return plain and all(isinstance(x, Node) and _is_held(x) for x in tensors) and is_tensor(node)


def _is_held(node: Node) -> bool:
    return node.op in ("placeholder", "get_attr") and isinstance(value(node), torch.Tensor)


def weight_of(node: Node) -> Any:
    """(n, k) of F.linear, (k, n) of torch.addmm."""
    return argument(node, 2 if node.target is torch.addmm else 1, "weight")


def bias_of(node: Node) -> Any:
    """None where there is none."""
    return node.args[0] if node.target is torch.addmm else argument(node, 2, "bias")


def given_to(node: Node) -> Any:
    """What is multiplied by the weight."""
    return node.args[1 if node.target is torch.addmm else 0]


def products_in(graph: Graph) -> Iterator[Found]:
    """Products with an activation, a gate or a residual; no node is in two of them."""
    order = {node: i for i, node in enumerate(graph.nodes)}
    taken: set[Node] = set()
    for node in list(graph.nodes):
        if node in taken or not is_product(node) or len(node.users) == 0:
            continue
        found = _activated(node, order)
        found = _added(node, order) if found is None else _gated(found, order)
        if found is not None and not taken & set(found.inner) and is_undisturbed(found, order):
            taken |= set(found.inner)
            yield found


def is_undisturbed(found: Found, order: dict[Node, int]) -> bool:
    """Whether nothing writes into memory between the first and the last node, and no node has a size of its own."""
    nodes = list(found.inner[0].graph.nodes)[order[found.inner[0]] : order[found.inner[-1]] + 1]
    symbols = any(isinstance(value(x), torch.SymInt) for node in found.inner for x in node.all_input_nodes)
    kept = symbols and any(node not in found.after for node in found.inner if _has_symbols(node))
    return not any(writes_to(node) for node in nodes) and not kept


def _has_symbols(node: Node) -> bool:
    return any(isinstance(value(x), torch.SymInt) for x in node.all_input_nodes)


def _inputs(node: Node) -> tuple[Node, ...]:
    return given_to(node), weight_of(node)


def _biases(*nodes: Node) -> tuple[Node, ...]:
    return tuple(bias_of(node) for node in nodes if bias_of(node) is not None)


def _activated(start: Node, order: dict[Node, int]) -> Found | None:
    """A product with an activation behind it."""
    inside, views = _reached(start, order)
    spec = ProductSpec(biased=bias_of(start) is not None, by_rows=start.target is torch.addmm)
    for end in sorted(inside - {start}, key=order.__getitem__, reverse=True):
        part = _between(start, end, inside)
        if any(set(node.users) - part for node in part - {end}):
            continue
        inner = tuple(sorted(part, key=order.__getitem__))
        name = activation_of(inner, views)
        if name:
            after = tuple(node for node in inner if node in views)
            inputs = (*_inputs(start), *_biases(start))
            return Found(replace(spec, activation=name), inner, inputs, (end,), after)
    return None


def _reached(start: Node, order: dict[Node, int]) -> tuple[set[Node], set[Node]]:
    """(the product, and all that is computed of it alone, element by element; views among these)."""
    inside, views = {start}, set[Node]()
    waiting = sorted(start.users, key=order.__getitem__)
    while waiting and len(inside) <= LONGEST:
        node = waiting.pop(0)
        if node in inside or any(x not in inside for x in node.all_input_nodes if is_tensor(x)):
            continue
        if operation(node) == "reshape" and node.op == "call_method" and list(start.users) == [node]:
            views.add(node)
        elif not is_pointwise(node) or any(not is_tensor(x) for x in node.all_input_nodes):
            continue
        inside.add(node)
        waiting = sorted({*waiting, *node.users}, key=order.__getitem__)
    return inside, views


def is_pointwise(node: Node) -> bool:
    """Whether each number of a result comes of numbers at its place."""
    return operation(node) in POINTWISE or node.target in POINTWISE_TARGETS


def _between(start: Node, end: Node, inside: set[Node]) -> set[Node]:
    found, waiting = {start}, [end]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += [x for x in node.all_input_nodes if x in inside]
    return found


def activation_of(inner: Sequence[Node], views: set[Node]) -> str:
    """The name of the activation behind a product, inner[0]; "" where it is none that is known."""
    graph, known = Graph(), dict[Node, Node]()
    known[inner[0]] = graph.placeholder("x")
    for node in inner[1:]:
        first = node.args[0]
        same = node in views and isinstance(first, Node)
        known[node] = known[first] if same else graph.node_copy(node, known.__getitem__)
    graph.output(known[inner[-1]])
    try:
        found = GraphModule(torch.nn.Module(), graph)(SAMPLES.clone())
    except (RuntimeError, TypeError):
        return ""
    for name, function in meaning.ACTIVATIONS.items():
        expected = function(SAMPLES.numpy())
        if name and found.shape == SAMPLES.shape and np.abs(found.double().numpy() - expected).max() < NEAR:
            return name
    return ""


def _gated(found: Found, order: dict[Node, int]) -> Found:
    """act(gate) * product, of the same rows; what was found where nothing is gated."""
    end, spec = found.outputs[0], found.spec
    assert isinstance(spec, ProductSpec)
    users = list(end.users)
    if len(users) != 1 or operation(users[0]) != "mul" or found.after or len(users[0].args) != 2:
        return found
    other = users[0].args[1] if users[0].args[0] is end else users[0].args[0]
    gate = found.inner[0]
    if not isinstance(other, Node) or other is end or not is_product(other) or list(other.users) != [users[0]]:
        return found
    same = given_to(other) is given_to(gate) and other.target is gate.target
    biased = bias_of(other) is not None
    if not same or biased != spec.biased or value(other).shape != value(gate).shape:
        return found
    inner = tuple(sorted((*found.inner, other, users[0]), key=order.__getitem__))
    inputs = (*_inputs(other), weight_of(gate), *_biases(other, gate))
    return Found(replace(spec, gated=True), inner, inputs, (users[0],))


def _added(start: Node, order: dict[Node, int]) -> Found | None:
    """A product to which something of its shape is added, as a residual; dropout that drops nothing may be between."""
    path = [start]
    while len(path[-1].users) == 1 and _passes(next(iter(path[-1].users)), start):
        path.append(next(iter(path[-1].users)))
    end, users = path[-1], list(path[-1].users)
    if len(users) != 1 or operation(users[0]) != "add" or users[0].kwargs:
        return None
    add = users[0]
    residual = add.args[1] if add.args[0] is end else add.args[0]
    if not is_tensor(residual) or residual is end or value(residual).shape != value(end).shape:
        return None
    if len(add.users) == 1 and operation(next(iter(add.users))) == "norm":
        return None  # the compiler joins the sum to the norm, which then reads as much and writes no sum
    x = _unviewed(start, end)
    if x is None or value(residual).dtype != value(start).dtype:
        return None
    spec = ProductSpec(biased=bias_of(start) is not None, residual=True, by_rows=start.target is torch.addmm)
    before = [] if x is given_to(start) else [given_to(start)]
    inner = tuple(sorted((*before, *path, add), key=order.__getitem__))
    assert isinstance(residual, Node)
    return Found(spec, inner, (x, weight_of(start), *_biases(start), residual), (add,))


def _passes(node: Node, start: Node) -> bool:
    """Whether a node gives on what it is given: dropout in inference, and views around torch.addmm."""
    if operation(node) == "dropout":
        return argument(node, 1, "p", 0.5) == 0 or argument(node, 2, "training", True) is False
    return start.target is torch.addmm and operation(node) == "reshape" and node.op == "call_method"


def _unviewed(start: Node, end: Node) -> Node | None:
    """What a product is given, before it is viewed as rows, if results have that shape; None if they have not."""
    x: Any = given_to(start)
    if value(x).shape[:-1] == value(end).shape[:-1]:
        return x if isinstance(x, Node) else None
    if not isinstance(x, Node) or operation(x) != "reshape" or x.op != "call_method" or set(x.users) != {start}:
        return None
    x = x.args[0]
    fits = is_tensor(x) and value(x).shape[:-1] == value(end).shape[:-1] and value(x).shape[-1] == _depth(start)
    return x if fits else None


def _depth(start: Node) -> Any:
    """Channels of what a product is given."""
    return value(given_to(start)).shape[-1]
