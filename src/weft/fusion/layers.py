"""Layers of a traced graph as lists of operators: what the search for segments works on.

A layer is what Dynamo traced inside one numbered module (`encoder.layer.3`), or the whole graph of a function. Views
are no operators, and neighbours that only one another read are one: Inductor makes one kernel of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import prod
from operator import getitem
from typing import Any

import torch
from torch.fx import Graph, Node

from weft.fusion.nodes import argument, is_tensor, operation, place, shape, value
from weft.fusion.operator import RECOGNISED
from weft.fusion.operators import Array, Kind, Layer, Operator

NUMBERED = re.compile(r"(.*?\.\d+)(\.|$)|(\d+)(\.|$)")
ALIASES = frozenset(("transpose", "permute", "reshape", "expand", "contiguous"))
ALIAS_METHODS = frozenset(("chunk", "split", "clone", "detach", "view_as", "unflatten", "t", "select", "narrow"))
ALIAS_FUNCTIONS = frozenset((getitem, torch.chunk, torch.split, torch.unsqueeze, torch.squeeze, getattr))
REDUCTIONS = frozenset(("mean", "sum", "var", "std", "amax", "amin", "max", "min", "norm", "softmax", "var_mean"))
CONV1D = (torch.addmm, torch.baddbmm)


def layers_of(graph: Graph, shares: dict[Node, float]) -> list[Layer]:
    """The layers of a graph that hold a product. shares: of pairs, what each recognised attention computes."""
    groups: dict[str, list[Node]] = {}
    for node in graph.nodes:
        if node.op in ("call_function", "call_method") and is_tensor_like(node):
            groups.setdefault(key_of(node), []).append(node)
    numbered = {key: nodes for key, nodes in groups.items() if key} or groups
    found = [_layer(key or "the function", nodes, shares) for key, nodes in numbered.items()]
    return [coalesced(one) for one in found if any(x.kind == "product" for x in one.operators)]


def is_tensor_like(node: Node) -> bool:
    """Whether a node gives a tensor, or the two of weft's operator."""
    return is_tensor(node) or node.target is RECOGNISED


def key_of(node: Node) -> str:
    match = NUMBERED.match(place(node))
    return (match[1] or match[3]) if match else ""


def _layer(name: str, nodes: list[Node], shares: dict[Node, float]) -> Layer:
    inside, operators = set(nodes), []
    base: dict[Node, Node] = {}  # of a view, the node whose memory it shows
    for node in nodes:
        if _is_alias(node):
            first = next(iter(node.all_input_nodes))
            base[node] = base.get(first, first)
            continue
        reads = dict.fromkeys(base.get(x, x) for x in node.all_input_nodes if is_tensor_like(x))
        flops = _flops(node, shares) if _kind(node) in ("product", "attention") else 0.0
        operators.append(Operator(_name(node), _kind(node), tuple(map(_array, reads)), _array(node), flops))
    kept = {base.get(node, node) for node in nodes if any(user not in inside for user in node.users)}
    return Layer(name, tuple(operators), frozenset(node.name for node in kept))


def _is_alias(node: Node) -> bool:
    if not node.all_input_nodes:
        return False
    if node.op == "call_method":
        return operation(node) in ALIASES or node.target in ALIAS_METHODS
    is_off = argument(node, 2, "training", True) is False or argument(node, 1, "p") == 0
    return (operation(node) == "dropout" and is_off) or operation(node) in ALIASES or node.target in ALIAS_FUNCTIONS


def _kind(node: Node) -> Kind:
    what = operation(node)
    if node.target is RECOGNISED or what == "sdpa":
        return "attention"
    if what in ("matmul", "linear"):
        return "product"
    name = _name(node)
    if what in ("norm", "softmax") or name in REDUCTIONS:
        return "norm"
    if what or node.target is torch.cat or _is_pointwise(node):
        return "pointwise"
    return "other"


def _is_pointwise(node: Node) -> bool:
    """Whether each element comes of elements at its place, as far as shapes tell; gathers have other shapes."""
    inputs = [shape(x) for x in node.all_input_nodes if is_tensor(x)]
    if not inputs or "embedding" in _name(node) or "index" in _name(node):
        return False
    try:
        return tuple(torch.broadcast_shapes(*inputs)) == shape(node)
    except RuntimeError:
        return False


def _flops(node: Node, shares: dict[Node, float]) -> float:
    if _kind(node) == "attention":
        query, key, values = (shape(argument(node, i, x)) for i, x in enumerate(("query", "key", "value")))
        pairs = prod(query[:-1]) * key[-2] * shares.get(node, 1.0)
        return 2.0 * pairs * (query[-1] + values[-1])
    first = shape(node.args[1 if node.target in CONV1D else 0])
    return 2.0 * prod(shape(node)) * (first[-1] if first else 1)


def _array(node: Node) -> Array:
    x: Any = value(node)
    if isinstance(x, tuple | list):
        x = x[0]
    if not isinstance(x, torch.Tensor):
        return Array(node.name, 0)
    sizes = shape(node) if is_tensor(node) else tuple(x.shape)
    weight = node.op in ("placeholder", "get_attr") and isinstance(x, torch.nn.Parameter)
    return Array(node.name, prod(sizes) * x.element_size(), sizes[-1] if sizes else 1, weight)


def _name(node: Node) -> str:
    """A product by the module that it comes from, as `down`; other nodes by their function."""
    if node.target is RECOGNISED:
        return "attention"
    module = place(node).rpartition(".")[2]
    if operation(node) == "linear" and module and not module.isdigit():
        return module
    return str(node.target if node.op == "call_method" else getattr(node.target, "__name__", node.target))


# ---- neighbours that are one -----------------------------------------------------------------------------------------
def coalesced(layer: Layer) -> Layer:
    """Runs of single elements and reductions as one operator each, where all but the last result is read inside."""
    found: list[Operator] = []
    i = 0
    while i < len(layer):
        last = max(_runs(layer, i))
        found.append(_joined([layer.operators[j] for j in range(i, last + 1)]))
        i = last + 1
    return _numbered(replace(layer, operators=tuple(found)))


def _runs(layer: Layer, first: int) -> Iterator[int]:
    """The last operators of runs from `first` on."""
    yield first
    made: list[Array] = []
    for j in range(first, len(layer)):
        one = layer.operators[j]
        linked = not made or {x.name for x in made} & {x.name for x in one.reads}
        if one.kind not in ("pointwise", "norm") or not linked:
            return
        if not any(layer.read_outside(array, range(first, j + 1)) for array in made):
            yield j
        made.append(one.writes)


def _joined(run: list[Operator]) -> Operator:
    if len(run) == 1:
        return run[0]
    made = {one.writes.name for one in run}
    reads = dict.fromkeys(x for one in run for x in one.reads if x.name not in made)
    norm = any(one.kind == "norm" for one in run)
    return Operator("norm" if norm else run[-1].name, "norm" if norm else "pointwise", tuple(reads), run[-1].writes)


def _numbered(layer: Layer) -> Layer:
    """With names that tell operators apart."""
    names = [one.name for one in layer.operators]
    seen: dict[str, int] = {}
    return replace(layer, operators=tuple(_told_apart(layer.operators, names, seen)))


def _told_apart(operators: Iterable[Operator], names: list[str], seen: dict[str, int]) -> Iterator[Operator]:
    for one in operators:
        seen[one.name] = seen.get(one.name, 0) + 1
        yield replace(one, name=f"{one.name} {seen[one.name]}") if names.count(one.name) > 1 else one
