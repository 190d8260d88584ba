"""Norms of each head of a query or key before it is rotated, as Qwen3 has them.

Such a norm is known by its values: it is computed at small numbers, which tell its epsilon, and at random ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.fx import Graph, GraphModule, Node

from weft.fusion.nodes import is_tensor, operation, shape
from weft.kernels.gpu.gemm import meaning

REDUCTIONS = frozenset((torch.mean, "mean", torch.rsqrt, "rsqrt", torch.pow, "pow", "square", torch.square))
MOST = 12  # operations of a norm
SMALL = 1e-3  # numbers whose square an epsilon is seen beside
NEAR = 1e-6  # apart, relative, below which two norms are one


@dataclass(frozen=True)
class HeadNorm:
    """of: what is normed, (B, S, H, D). weight: (D,). inner: nodes of the norm, its result last."""

    of: Node
    weight: Node
    epsilon: float
    inner: tuple[Node, ...]


def norm_of(node: Node) -> HeadNorm | None:
    """The norm whose result a node is."""
    inner, read = _from(node)
    held = [x for x in read if x.op in ("placeholder", "get_attr")]
    heads = [x for x in read if x not in held]
    if not inner or len(held) != 1 or len(heads) != 1 or shape(held[0]) != shape(heads[0])[-1:]:
        return None
    epsilon = _epsilon(inner, heads[0], held[0])
    return None if epsilon is None else HeadNorm(heads[0], held[0], epsilon, tuple(inner))


def _from(node: Node) -> tuple[list[Node], list[Node]]:
    """(nodes of what might be a norm in the graph's order, tensors that they read); ([], []) of other nodes."""
    found: list[Node] = []
    read: list[Node] = []
    waiting = [node]
    while waiting:
        at = waiting.pop()
        if at in found or at in read:
            continue
        if at.op in ("placeholder", "get_attr") or operation(at) == "reshape":
            read.append(at)
            continue
        what = operation(at) in ("mul", "add", "cast", "norm") or at.target in REDUCTIONS
        if not what or not is_tensor(at) or len(found) > MOST:
            return [], []
        found.append(at)
        waiting += at.all_input_nodes
    return sorted(found, key=list(node.graph.nodes).index), read


def _epsilon(inner: list[Node], heads: Node, weight: Node) -> float | None:
    """That of the norm; None where these nodes are none."""
    d = int(shape(heads)[-1])
    random = np.random.default_rng(0)
    x, w = random.standard_normal((6, 1, d)), random.uniform(0.5, 1.5, d)
    try:
        call = _made(inner, heads, weight)
        small = call(np.full((1, 1, d), SMALL), w)[0, 0]
        with np.errstate(divide="ignore", invalid="ignore"):  # of what is no norm
            found = float(f"{float(np.mean((SMALL * w / small) ** 2)) - SMALL**2:.6g}")
        if not (math.isfinite(found) and found >= 0):
            return None
        expected = meaning.head_norm(x, w, found)
        same = np.allclose(call(x, w), expected, rtol=NEAR, atol=NEAR)
    except (KeyError, RuntimeError, TypeError, ValueError):
        return None
    return found if same else None


def _made(inner: list[Node], heads: Node, weight: Node) -> Any:
    """The nodes as a function of arrays in float64: casts change nothing."""
    graph = Graph()
    known = {heads: graph.placeholder("x"), weight: graph.placeholder("w")}
    for node in inner:
        first = node.args[0] if node.args else None
        if operation(node) == "cast" and isinstance(first, Node):
            known[node] = known[first]
        else:
            known[node] = graph.node_copy(node, known.__getitem__)
    graph.output(known[inner[-1]])
    module = GraphModule(torch.nn.Module(), graph)

    def call(x: np.ndarray, w: np.ndarray) -> Any:
        return module(torch.from_numpy(x), torch.from_numpy(w)).numpy()

    return call
