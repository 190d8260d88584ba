"""The second stage of the choice: a whole layer in a CUDA graph, with some of its segments by weft's kernels.

A segment that is faster alone may be slower in its layer, since the compiler behind weft joins what it leaves to its
neighbours. It joins a residual's sum to the norm after it. So the layer is compiled and measured with all kinds of
segments that won alone. Then it goes without one kind of residual at a time, as long as that is faster, and with none
of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from weft.fusion.epilogues import Found, anonymous
from weft.fusion.layers import key_of
from weft.fusion.nodes import hint, value

SECONDS = 60.0  # after which no further candidate is compiled
Put = Callable[[Graph, Sequence[tuple[Found, Any]]], None]
Meter = Callable[[GraphModule, list[Any]], float]


@dataclass(frozen=True)
class Part:
    """One layer of a graph: its nodes, what they read, and what others read of them."""

    nodes: tuple[Node, ...]
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]

    @staticmethod
    def around(node: Node) -> Part:
        """The layer that holds a node."""
        key = key_of(node)
        nodes = tuple(x for x in node.graph.nodes if x.op in ("call_function", "call_method") and key_of(x) == key)
        inside = set(nodes)
        inputs = tuple(dict.fromkeys(x for one in nodes for x in one.all_input_nodes if x not in inside))
        outputs = tuple(x for x in nodes if any(user not in inside for user in x.users))
        return Part(nodes, inputs, outputs)

    def copied(self, founds: Sequence[tuple[Found, Any]], put: Put, owner: Any) -> GraphModule:
        """The layer as a module (*inputs) -> outputs, in which `put` replaced some segments."""
        graph, known = Graph(), dict[Node, Node]()
        for i, node in enumerate(self.inputs):
            known[node] = graph.placeholder(f"t{i}")
            known[node].meta = dict(node.meta)
        for node in self.nodes:
            known[node] = graph.node_copy(node, known.__getitem__)
        graph.output(tuple(known[node] for node in self.outputs))
        put(graph, [(_moved(found, known), choice) for found, choice in founds])
        return GraphModule(owner, anonymous(graph))

    def values(self, given: Mapping[Node, Any]) -> list[Any] | None:
        """What it is measured on: what is known of the graph's inputs, else random numbers; None where a size is a
        symbol.
        """
        found: list[Any] = []
        random: torch.Generator | None = None
        for node in self.inputs:
            x = given.get(node, value(node))
            if isinstance(x, torch.SymInt) or not isinstance(x, Tensor):
                return None
            if node not in given:
                random = random or torch.Generator(x.device).manual_seed(0)
                x = _random(x, random)
            found.append(x)
        return found


def _moved(found: Found, known: Mapping[Node, Node]) -> Found:
    def all_of(nodes: Sequence[Node]) -> tuple[Node, ...]:
        return tuple(known[node] for node in nodes)

    return replace(
        found, inner=all_of(found.inner), inputs=all_of(found.inputs), outputs=all_of(found.outputs),
        after=all_of(found.after),
    )  # fmt: skip


def _random(like: Any, random: torch.Generator) -> Tensor:
    sizes = [hint(n) for n in like.shape]
    if not like.dtype.is_floating_point:
        return torch.zeros(sizes, dtype=like.dtype, device=like.device)
    return torch.randn(sizes, dtype=like.dtype, device=like.device, generator=random)


@dataclass
class Settled:
    """kept: kinds of segments that stay fused. seconds: of the layer by the kinds that were fused in it."""

    kept: frozenset[int]
    seconds: dict[frozenset[int], float] = field(default_factory=dict)

    def reason_against(self, kind: int) -> str:
        """Why a kind that won alone is left."""
        with_it = min((x for kinds, x in self.seconds.items() if kind in kinds), default=0.0)
        best = self.seconds[self.kept]
        return f"its layer takes {1e6 * best:.0f} us without it, and {1e6 * with_it:.0f} with it"


def settle(
    kinds: Sequence[int], seconds_of: Callable[[frozenset[int]], float], joined: Sequence[int] | None = None,
    until: float | None = None,
) -> Settled:  # fmt: skip
    """Which kinds make a layer fastest: all of them, fewer one at a time, or none.

    joined: kinds that may be left out, all by default: those that the compiler could join to their neighbours. until: a
    time of time.monotonic.
    """
    doubtful = set(kinds if joined is None else joined)
    end = time.monotonic() + SECONDS if until is None else until
    found = Settled(frozenset(kinds))

    def measured(some: frozenset[int]) -> float:
        if some not in found.seconds:
            found.seconds[some] = seconds_of(some)
        return found.seconds[some]

    best = measured(found.kept)
    improved = True
    while improved:
        improved = False
        for kind in sorted(found.kept & doubtful):
            fewer = found.kept - {kind}
            if time.monotonic() > end and fewer not in found.seconds:
                break
            if fewer and measured(fewer) < best:
                found.kept, best, improved = fewer, found.seconds[fewer], True
    if measured(frozenset()) <= best:
        found.kept = frozenset()
    return found
