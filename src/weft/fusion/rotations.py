"""The three products before attention, with the rotation by position (RoPE) of queries and keys.

A rotation is read from x * cos + turned(x) * sin. What turns x is known by its values: it is computed at random
numbers, and compared with both forms, halves and neighbours.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from weft.fusion.epilogues import Found, bias_of, given_to, is_product, is_undisturbed, weight_of
from weft.fusion.head_norms import HeadNorm, norm_of
from weft.fusion.kernels import ProjectionsSpec
from weft.fusion.nodes import is_tensor, operation, shape, value
from weft.fusion.operator import RECOGNISED
from weft.kernels.gpu.gemm import meaning

TURNS = frozenset((operator.getitem, operator.neg, torch.cat, torch.stack, torch.neg, "neg", "flatten", "chunk"))
MOST = 12  # operations that turn channels


@dataclass(frozen=True)
class Rotation:
    """of: what is rotated, (B, H, S, D). cos, sin: broadcast to it. inner: nodes of the rotation, its result last."""

    of: Node
    cos: Node
    sin: Node
    interleaved: bool
    inner: tuple[Node, ...]


@dataclass(frozen=True)
class _Side:
    """A query, key or value: its product, the nodes up to attention, its rotation and the norm of its heads or None."""

    product: Node
    inner: tuple[Node, ...]
    rotation: Rotation | None
    norm: HeadNorm | None


def projections_in(graph: Graph) -> Iterator[Found]:
    """The products that make query, key and value of one attention."""
    order = {node: i for i, node in enumerate(graph.nodes)}
    taken: set[Node] = set()
    for node in list(graph.nodes):
        if node.target is not RECOGNISED and operation(node) != "sdpa":
            continue
        found = _projections(node, order)
        if found is not None and not taken & set(found.inner) and is_undisturbed(found, order):
            taken |= set(found.inner)
            yield found


def _projections(attention: Node, order: dict[Node, int]) -> Found | None:
    query, key, values = attention.args[:3] if len(attention.args) >= 3 else (None, None, None)
    sides = [_side(x) for x in (query, key, values)]
    if any(side is None for side in sides):
        return None
    q, k, v = (side for side in sides if side is not None)
    products = [q.product, k.product, v.product]
    if len(set(products)) < 3 or len({given_to(node) for node in products}) > 1:
        return None
    biased = {bias_of(node) is not None for node in products}
    if len(biased) > 1 or len({node.target for node in products}) > 1 or v.rotation is not None:
        return None
    tables: tuple[Node, ...] = ()
    interleaved = False
    if q.rotation is not None and k.rotation is not None:
        if (q.rotation.cos, q.rotation.sin) != (k.rotation.cos, k.rotation.sin):
            return None
        tables, interleaved = (q.rotation.cos, q.rotation.sin), q.rotation.interleaved
        if interleaved != k.rotation.interleaved or not _are_tables(tables, shape(query)):
            return None
    elif q.rotation is not None or k.rotation is not None:
        return None
    norms = _norms(q, k, v)
    if norms is None:
        return None
    spec = ProjectionsSpec(
        shape(query)[-1], biased == {True}, bool(tables), interleaved, products[0].target is torch.addmm,
        bool(norms), norms[0].epsilon if norms else 0.0,
    )  # fmt: skip
    inner = {*products, *(node for side in (q, k, v) if spec.by_head for node in side.inner)}
    outputs = (query, key, values) if spec.by_head else tuple(products)
    biases = [bias_of(node) for node in products] if spec.biased else []
    given = [given_to(products[0]), *(weight_of(node) for node in products), *biases]
    inputs = (*given, *(norm.weight for norm in norms), *tables)
    closed = all(set(node.users) <= inner for node in inner - set(outputs))
    found = Found(spec, tuple(sorted(inner, key=order.__getitem__)), inputs, outputs)
    ready = max(order[node] for node in inputs) < order[found.first_use(order)]
    return found if closed and ready else None


def _norms(q: _Side, k: _Side, v: _Side) -> list[HeadNorm] | None:
    """Those of query and key, [] where there are none; None where one kernel has no rule for what there is."""
    norms = [side.norm for side in (q, k) if side.norm is not None]
    same = len({norm.epsilon for norm in norms}) == 1 and len(norms) == 2
    return norms if v.norm is None and (same or not norms) else None


def _are_tables(tables: tuple[Node, ...], query: tuple[int, ...]) -> bool:
    """Whether both are (1 or B, 1, S, D)."""
    batch, _, tokens, d = query
    return all(shape(x) in ((1, 1, tokens, d), (batch, 1, tokens, d)) for x in tables)


def _side(node: Any) -> _Side | None:
    """Traced back from what attention takes, (B, H, S, D), to its product (B, S, H * D)."""
    if not is_tensor(node) or value(node).dim() != 4:
        return None
    rotation = rotation_of(node)
    at = node if rotation is None else rotation.of
    inner: list[Node] = [] if rotation is None else list(rotation.inner)
    if operation(at) != "transpose" or tuple(at.args[1:]) not in ((1, 2), (2, 1)):
        return None
    heads = at.args[0]
    norm = None if not isinstance(heads, Node) or operation(heads) == "reshape" else norm_of(heads)
    if norm is not None:
        heads, inner = norm.of, [*norm.inner, *inner]
    if not isinstance(heads, Node) or operation(heads) != "reshape" or not isinstance(heads.args[0], Node):
        return None
    product = heads.args[0]
    b, h, s, d = shape(at)
    if not is_product(product) or shape(product) != (b, s, h * d) or shape(heads) != (b, s, h, d):
        return None
    return _Side(product, (product, heads, at, *inner), rotation, norm)


def rotation_of(node: Node) -> Rotation | None:
    """The rotation whose result a node is."""
    if operation(node) != "add" or node.kwargs or not all(operation(x) == "mul" for x in node.args):
        return None
    one, other = node.args
    assert isinstance(one, Node) and isinstance(other, Node)
    for straight, turned in ((one, other), (other, one)):
        for x, cos in (straight.args, straight.args[::-1]):
            for y, sin in (turned.args, turned.args[::-1]):
                if not all(isinstance(n, Node) for n in (x, cos, y, sin)):
                    continue
                inner = _from(y, x)
                form = _form(inner, x, y) if inner else None
                if form is not None:
                    nodes = (*inner, straight, turned, node)
                    return Rotation(x, cos, sin, form == "neighbours", nodes)
    return None


def _from(node: Any, source: Any) -> list[Node]:
    """The nodes by which one is made of another, by moves of channels and signs; [] where it is made otherwise."""
    found: list[Node] = []
    waiting = [node]
    while waiting:
        at = waiting.pop()
        if at is source or at in found:
            continue
        if not (at.target in TURNS or operation(at) == "reshape") or len(found) > MOST:
            return []
        found.append(at)
        waiting += at.all_input_nodes
    return sorted(found, key=list(node.graph.nodes).index)


def _form(inner: list[Node], x: Node, y: Node) -> str | None:
    """How channels turn: "halves", "neighbours", or None. By values of a small tensor of as many channels."""
    graph, known = Graph(), dict[Node, Node]()
    known[x] = graph.placeholder("x")
    try:
        for node in inner:
            known[node] = graph.node_copy(node, known.__getitem__)
        graph.output(known[y])
        given = torch.randn(1, 2, 3, shape(x)[-1], dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        found = GraphModule(torch.nn.Module(), graph)(given).numpy()
    except (KeyError, RuntimeError, TypeError):
        return None
    rows = given.numpy().reshape(-1, 1, given.shape[-1])
    none, all_of_it = 0 * rows[:, 0], 0 * rows[:, 0] + 1
    for form in ("halves", "neighbours"):
        expected = meaning.rope(rows, none, all_of_it, form == "neighbours").reshape(given.shape)
        if found.shape == expected.shape and (found == expected).all():
            return form
    return None
