"""Attention written as products joined by a softmax: what is done to scores and weights in between, node by node."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Node

from weft.fusion.attention import SOFTMAX, Attention, MaskUse, Other
from weft.fusion.nodes import argument, chain, is_tensor, operation, value

BETWEEN = frozenset(("cast", "dropout", "contiguous"))  # the soft maximum and the second product
DEEPEST = 12  # operations between the first product and the softmax
ALL_BUT_LAST = (Ellipsis, slice(None, -1, None))


def joins_products(node: Node) -> bool:
    """Whether a softmax has a product somewhere before it, through what attention does to scores, and one after."""
    after = _weights(node)[-1]
    if not any(operation(user) == "matmul" and user.args[0] is after for user in after.users):
        return False
    seen: list[Any] = [node.args[0]]
    for _ in range(DEEPEST):
        if any(operation(x) == "matmul" for x in seen):
            return True
        seen = [arg for x in seen if isinstance(x, Node) for arg in _operands(x)]
    return False


def _operands(node: Node) -> list[Any]:
    if node.target is torch.cat:
        parts = node.args[0]
        return list(parts[:1]) if isinstance(parts, list | tuple) else []
    if not operation(node):
        return []
    return list(node.args[1:2] if operation(node) == "where" else node.args[:2])


def _weights(softmax: Node) -> list[Node]:
    """The softmax and what follows it before the second product, without the column of sinks."""
    found = list(chain(softmax, BETWEEN))
    users = list(found[-1].users)
    if len(users) == 1 and users[0].target is operator.getitem and users[0].args[1] == ALL_BUT_LAST:
        found += chain(users[0], BETWEEN)
    return found


def of_softmax(node: Node) -> Attention:
    """Read from its softmax. Raises Other."""
    given = value(node.args[0])
    dim = argument(node, 1, "dim")
    if dim is None or not isinstance(given, torch.Tensor) or dim % given.dim() != given.dim() - 1:
        raise Other("its softmax is not over the last axis")
    weights = _weights(node)
    for one in weights:
        if operation(one) == "dropout" and argument(one, 1, "p", 0.5) != 0 and argument(one, 2, "training", True):
            raise Other("it drops weights, and weft would draw others")
    users = list(weights[-1].users)
    if len(users) != 1 or operation(users[0]) != "matmul" or users[0].args[0] is not weights[-1]:
        raise Other("its weights are used elsewhere too")
    last = users[0]
    scores = _Scores(node, any(one.target is operator.getitem for one in weights))
    first = scores.first
    places = {one: i for i, one in enumerate(node.graph.nodes)}
    inner = sorted((*scores.inner, *weights, last), key=places.__getitem__)
    values = argument(last, 1, "other", last.kwargs.get("mat2"))
    query, key = first.args[0], argument(first, 1, "other", first.kwargs.get("mat2"))
    if not all(is_tensor(x) for x in (query, key, values)):
        raise Other("its query, key or value is no tensor of the graph")
    if not scores.masks:
        raise Other("it has no mask")
    masks = tuple(reversed(scores.masks))
    return Attention(
        last, SOFTMAX, query, key, values, masks, scores.scale, scores.softcap, tuple(inner), True, scores.sinks
    )


class _Scores:
    """What is done to scores between the first product and the softmax, read backwards.

    scale and softcap follow weft's order: softcap * tanh(scale * score / softcap), then the masks.
    """

    def __init__(self, softmax: Node, sinks: bool) -> None:
        self.masks: list[MaskUse] = []
        self.inner: list[Node] = []
        self.scale = 1.0
        self.softcap: float | None = None
        self.sinks: Node | None = None
        node: Any = self._without_sinks(softmax.args[0]) if sinks else softmax.args[0]
        while operation(node) != "matmul":
            if not isinstance(node, Node) or len(node.users) != 1:
                raise Other("its scores are used elsewhere too")
            self.inner.append(node)
            node = self._step(node)
        if len(node.users) != 1:
            raise Other("its scores are used elsewhere too")
        self.inner.append(node)
        self.first: Node = node

    def _without_sinks(self, node: Any) -> Any:
        """The scores to which a column of sinks was joined; its maximum may have been subtracted."""
        if operation(node) == "sub":
            joined, most = node.args[:2]
            reduction = most.args[0] if isinstance(most, Node) and most.target is operator.getitem else None
            if reduction is None or not _is_maximum(reduction, joined):
                raise Other("its scores lose what is not their maximum")
            self.inner += [node, most, reduction]
            node = joined
        parts: Any = node.args[0] if isinstance(node, Node) and node.target is torch.cat else ()
        if len(parts) != 2 or argument(node, 1, "dim") != -1 or len(node.users) > 2:
            raise Other("its scores are joined with what are no sinks")
        self.inner.append(node)
        self.sinks = self._column(parts[1])
        return parts[0]

    def _column(self, node: Any) -> Node:
        """The logits (Hq,) that a column (B, Hq, M, 1) repeats."""
        ways = []
        while operation(node) in ("expand", "reshape") and len(node.users) == 1:
            self.inner.append(node)
            ways.append(node)
            node = node.args[0]
        flat = is_tensor(node) and value(node).dim() == 1
        shapes = [tuple(one.args[1:]) for one in reversed(ways)]
        if not flat or len(ways) != 2 or shapes[0] != (1, -1, 1, 1) or shapes[1][1::2] != (-1, -1):
            raise Other("its scores are joined with what are no sinks of heads")
        found: Node = node
        return found

    def _step(self, node: Node) -> Any:
        what = operation(node)
        if what == "cast":
            return node.args[0]
        if what in ("mul", "div"):
            return self._scaled(node, what)
        if what == "tanh":
            return self._capped(node)
        if what in ("add", "masked_fill", "where"):
            return self._masked(node, what)
        raise Other(f"its scores go through {node.target if node.op == 'call_method' else _name(node)}")

    def _scaled(self, node: Node, what: str) -> Any:
        by = [x for x in node.args[:2] if isinstance(x, int | float)]
        rest = [x for x in node.args[:2] if isinstance(x, Node)]
        if len(by) != 1 or len(rest) != 1 or (what == "div" and rest[0] is not node.args[0]) or not by[0]:
            raise Other("its scores are scaled by what is no number")
        self.scale *= by[0] if what == "mul" else 1 / by[0]
        return rest[0]

    def _capped(self, node: Node) -> Any:
        """softcap * tanh(score / softcap): the factor after it was met already."""
        if self.softcap is not None or self.scale <= 0:
            raise Other("its scores go through tanh twice, or with a negative factor")
        self.softcap = self.scale  # and scale begins there too, since weft divides by softcap
        return node.args[0]

    def _masked(self, node: Node, what: str) -> Any:
        if self.scale != 1.0 or self.softcap is not None:
            raise Other("its scores are scaled after a mask was applied")
        if what == "add":
            return self._added(node)
        if what == "where":
            condition, scores, otherwise = node.args[:3]
            use = MaskUse(condition, "keep")
        else:
            scores, condition, otherwise = node.args[0], argument(node, 1, "mask"), argument(node, 2, "value")
            use = MaskUse(condition, "fill")
        if not isinstance(otherwise, int | float) or not _is_minus_infinity(otherwise, scores):
            raise Other("its masked scores become a number that is not the least of their type")
        self._keep(use)
        return scores

    def _added(self, node: Node) -> Any:
        if node.kwargs.get("alpha", 1) != 1:
            raise Other("its scores are added with a factor")
        sides = [(node.args[0], node.args[1]), (node.args[1], node.args[0])]
        for scores, mask in sides:
            if _leads_to_product(scores):
                self._keep(MaskUse(mask, "add"))
                return scores
        raise Other("its scores are a sum without a product")

    def _keep(self, use: MaskUse) -> None:
        if not is_tensor(use.node):
            raise Other("its mask is no tensor of the graph")
        self.masks.append(use)


def _leads_to_product(node: Any) -> bool:
    for _ in range(8):
        if not isinstance(node, Node):
            return False
        what = operation(node)
        if what == "matmul":
            return True
        if what == "where":
            node = node.args[1]
        elif what in ("mul", "div", "add", "cast", "tanh", "masked_fill"):
            first = node.args[0]
            node = first if isinstance(first, Node) else node.args[1]
        else:
            return False
    return False


def _is_minus_infinity(number: float, scores: Any) -> bool:
    given = value(scores)
    return isinstance(given, torch.Tensor) and given.is_floating_point() and number <= torch.finfo(given.dtype).min


def _is_maximum(node: Any, of: Any) -> bool:
    called = (node.op == "call_method" and node.target in ("max", "amax")) or node.target is torch.max
    return bool(called) and node.args[0] is of and argument(node, 1, "dim") == -1 and len(node.users) == 1


def _name(node: Node) -> str:
    return str(getattr(node.target, "__name__", node.target))
