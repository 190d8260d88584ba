"""A traced graph in which weft's operator stands where it pays; everything else stays as it is.

The graph is Dynamo's: before autograd, in whole operations of torch. So gradients come of the operator. What Dynamo
broke off, hooks and modes are seen as they are in this graph or not at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from operator import getitem
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from weft.errors import WeftError
from weft.fusion.attention import SDPA, Attention, Left
from weft.fusion.decide import Dead, Decision, Replaced, beforehand, registered
from weft.fusion.extract import decomposed, is_pure, masks_of
from weft.fusion.find import found
from weft.fusion.layers import layers_of
from weft.fusion.nodes import Unsized, hint, operation, value
from weft.fusion.operator import RECOGNISED
from weft.fusion.place import place_segments
from weft.fusion.report import GraphReport, Seen
from weft.fusion.settings import Settings


def rewrite(module: GraphModule, inputs: Sequence[Any], settings: Settings) -> tuple[GraphReport, list[Node]]:
    """Put weft's operator in place of attention where its mask, as it is among `inputs`, leaves out enough.

    The module is changed. Returns what was found, replaced or left with the reason, and the nodes that masks of what
    was replaced are computed from.
    """
    refused = _against_all(module.graph)
    known = _Inputs(module, inputs)
    places: Counter[str] = Counter()
    shares: dict[Node, float] = {}
    masks: list[Node] = []
    report = GraphReport(broken=_break(module))
    for one in found(module.graph):
        if isinstance(one, Left) or refused:
            reason = refused or (one.reason if isinstance(one, Left) else "")
            report.seen.append(Seen(one.where, one.form, reason))
            continue
        try:
            new, decision = _considered(one, known, settings)
        except Unsized as unsized:
            new, decision = None, Decision(None, str(unsized))
        if new is None or decision.pattern is None:
            report.seen.append(Seen(one.where, one.form, decision.reason, decision.share))
            continue
        replaced, leaves, numbers = new
        call = _put(one, replaced, (leaves, numbers, replaced.name, places[replaced.name]))
        shares[call] = decision.share
        masks += leaves
        places[replaced.name] += 1
        report.seen.append(Seen(one.where, one.form, "", decision.share, decision.mask, replaced))
    if places:
        _sweep(module.graph)
        module.graph.lint()
        module.recompile()
    report.segments = place_segments(module, settings, refused, known.given)
    with suppress(Unsized):  # then bytes cannot be counted
        report.layers = layers_of(module.graph, shares)
    return report, masks


def _break(module: GraphModule) -> str:
    """Why Dynamo ended the graph before the function did; "" where it did not."""
    reason = getattr(module, "compile_subgraph_reason", None)
    if reason is None or not getattr(reason, "graph_break", False):
        return ""
    return str(reason.reason).strip().splitlines()[0]


def _against_all(graph: Graph) -> str:
    """Why nothing of a graph may be replaced; "" where it may."""
    for node in graph.nodes:
        name = f"{getattr(node.target, '__module__', '')}.{getattr(node.target, '__name__', node.target)}"
        if "enter_autocast" in name:
            return "autocast is entered in the graph, and weft's operator has no rule for it"
        if "functorch" in name:
            return "a torch.func transform stands in the graph"
    if any(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")):
        return "autocast is enabled, and weft's operator has no rule for it"
    return ""


class _Inputs:
    """Values of nodes that are there before the graph runs."""

    def __init__(self, module: GraphModule, inputs: Sequence[Any]) -> None:
        placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
        self.module = module
        self.given = dict(zip(placeholders, inputs, strict=True))

    def tensor(self, node: Node) -> Tensor | None:
        """A tensor with its values; None where they are not known yet."""
        x = self.given.get(node)
        if node.op == "get_attr":
            x = _attribute(self.module, str(node.target))
        fake = torch._subclasses.fake_tensor.FakeTensor
        return x if isinstance(x, Tensor) and not isinstance(x, fake) and not x.is_meta else None


def _attribute(module: Any, path: str) -> Any:
    for part in path.split("."):
        module = getattr(module, part, None)
    return module


New = tuple[Replaced, list[Node], list[Node]]


def _considered(one: Attention, known: _Inputs, settings: Settings) -> tuple[New | None, Decision]:
    """What would replace an attention, and what is decided for the inputs that the graph was traced with."""
    masks = masks_of(one)
    if isinstance(masks, str):
        return None, Decision(None, masks)
    unfused = decomposed(one, masks.numbers)
    if isinstance(unfused, str):
        return None, Decision(None, unfused)
    order = _order(one)
    if order is None:
        return None, Decision(None, "its result lies in memory otherwise than weft's")
    hows = tuple(use.how for use in one.masks)
    replaced = Replaced(
        masks.module, unfused.module, hows, isinstance(one.scale, Node), one.softcap, _dead(one), order,
        torch.is_grad_enabled() and any(value(x).requires_grad for x in (one.query, one.key, one.values)),
        one.sinks is not None, settings,
    )  # fmt: skip
    replaced = registered(replaced)
    leaves = [known.tensor(node) for node in masks.tensors]
    values = [x for x in leaves if x is not None]
    if len(values) < len(leaves):
        return None, Decision(None, "its mask is made of tensors whose values are not known while the graph is traced")
    numbers = [hint(value(node)) for node in unfused.numbers]
    q, k, v = (_stand_in(node) for node in (one.query, one.key, one.values))
    if one.transposed:
        k = k.transpose(-1, -2)
    try:
        decision = beforehand(replaced, (q, k, v), values, numbers)
    except (WeftError, RuntimeError) as error:
        return None, Decision(None, f"its mask cannot be computed beforehand: {str(error).splitlines()[0]}")
    return (replaced, list(masks.tensors), list(unfused.numbers)), decision


def _dead(one: Attention) -> Dead:
    """scaled_dot_product_attention gives 0 for booleans and -inf, and a mean for the least number. A softmax gives that
    mean, or NaN. A sink takes the whole weight.
    """
    if one.sinks is not None:
        return "zero"
    return "zero without least" if one.form == SDPA else "other"


def _stand_in(node: Node) -> Tensor:
    """A tensor without memory, of the sizes with which a graph was traced."""
    x = value(node)
    return torch.empty(1, dtype=x.dtype, device=x.device).expand([hint(n) for n in x.shape])


def _order(one: Attention) -> bool | None:
    """Whether the result may lie as weft's does, in the order of the query's axes; False: it is contiguous; None: it is
    neither, and someone sees it.
    """
    if value(one.node).dim() == 3:
        return False
    if all(operation(user) in ("transpose", "permute") and _copied(user) for user in one.node.users):
        return True
    strides, of_query = ([hint(s) for s in value(x).stride()] for x in (one.node, one.query))
    if sorted(range(3), key=strides.__getitem__, reverse=True) == sorted(
        range(3), key=of_query.__getitem__, reverse=True
    ):
        return True
    return False if value(one.node).is_contiguous() else None


def _copied(view: Node) -> bool:
    """Whether all users of a view take it in any order of memory."""
    free = [user.op == "call_method" and user.target in ("contiguous", "reshape", "clone") for user in view.users]
    return bool(free) and all(free)


def _put(one: Attention, replaced: Replaced, given: tuple[Any, ...]) -> Node:
    """The operator in place of an attention; its call."""
    graph = one.node.graph
    with graph.inserting_before(one.node):
        key = one.key
        if one.transposed:
            key = graph.call_method("transpose", (one.key, -2, -1))
            key.meta = {**one.key.meta, "example_value": value(one.key).transpose(-2, -1)}
        both = graph.call_function(RECOGNISED, (one.query, key, one.values, one.sinks, one.scale, *given, False))
        out = graph.call_function(getitem, (both, 0))
    out.meta = dict(one.node.meta)
    both.meta = {**one.node.meta, "example_value": (value(one.node),)}
    one.node.replace_all_uses_with(out)
    for node in reversed(one.inner):
        if not node.users:
            graph.erase_node(node)
    return both


def _sweep(graph: Graph) -> None:
    """Erase what computed masks that nobody reads now."""
    for node in reversed(list(graph.nodes)):
        if not node.users and node.op not in ("placeholder", "output", "get_attr") and is_pure(node):
            graph.erase_node(node)
