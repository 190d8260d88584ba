"""Nodes of the graphs that Dynamo traces: the operation behind each spelling, its arguments, its module."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Node

F = torch.nn.functional

# Functions and methods of torch by the operation that they are.
FUNCTIONS: dict[Any, str] = {
    operator.matmul: "matmul", torch.matmul: "matmul", torch.bmm: "matmul",
    F.softmax: "softmax", torch.softmax: "softmax", torch.special.softmax: "softmax",
    F.scaled_dot_product_attention: "sdpa",
    operator.add: "add", torch.add: "add", operator.iadd: "add",
    operator.sub: "sub", torch.sub: "sub",
    operator.mul: "mul", torch.mul: "mul", operator.imul: "mul", torch.multiply: "mul",
    operator.truediv: "div", torch.div: "div", torch.true_divide: "div", operator.itruediv: "div",
    torch.tanh: "tanh", F.tanh: "tanh",
    torch.where: "where", torch.masked_fill: "masked_fill",
    F.dropout: "dropout", torch.dropout: "dropout",
    torch.transpose: "transpose", torch.permute: "permute", torch.reshape: "reshape",
    F.linear: "linear", torch.addmm: "linear", torch.baddbmm: "linear",
    F.layer_norm: "norm", F.rms_norm: "norm", torch.layer_norm: "norm", torch.rms_norm: "norm",
    F.gelu: "gelu", F.silu: "silu", F.relu: "relu",
}  # fmt: skip
METHODS = {
    "matmul": "matmul", "bmm": "matmul", "__matmul__": "matmul", "softmax": "softmax",
    "add": "add", "__add__": "add", "add_": "add", "sub": "sub", "mul": "mul", "mul_": "mul", "div": "div",
    "div_": "div", "tanh": "tanh", "masked_fill": "masked_fill", "masked_fill_": "masked_fill", "where": "method_where",
    "to": "cast", "float": "cast", "half": "cast", "bfloat16": "cast", "double": "cast", "type_as": "cast",
    "type": "cast", "transpose": "transpose", "permute": "permute", "contiguous": "contiguous",
    "reshape": "reshape", "view": "reshape", "swapaxes": "transpose", "unsqueeze": "reshape", "squeeze": "reshape",
    "expand": "expand", "flatten": "reshape",
}  # fmt: skip
# Results that share memory with their first argument.
VIEWS = frozenset(("transpose", "permute", "reshape", "expand", "contiguous", "cast"))
IN_PLACE = frozenset((
    operator.setitem, operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.iand, operator.ior,
    operator.ixor, operator.imod, operator.ifloordiv, operator.ipow, operator.imatmul, operator.ilshift,
    operator.irshift, operator.delitem,
))  # fmt: skip


def operation(node: Any) -> str:
    """The operation of a node; "" where it has no name here, or is no node.

    >>> operation(5)
    ''
    """
    if not isinstance(node, Node):
        return ""
    if node.op == "call_function":
        return FUNCTIONS.get(node.target, "")
    return METHODS.get(str(node.target), "") if node.op == "call_method" else ""


def argument(node: Node, place: int, name: str, default: Any = None) -> Any:
    """An argument by its place or its name."""
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


def value(node: Any) -> Any:
    """The fake tensor, or the symbolic number, that Dynamo has for a node; what is no node as it is."""
    return node.meta.get("example_value") if isinstance(node, Node) else node


def is_tensor(node: Any) -> bool:
    """Whether a node stands for a tensor."""
    return isinstance(node, Node) and isinstance(value(node), torch.Tensor)


def is_number(node: Any) -> bool:
    """Whether a node stands for an integer that depends on sizes."""
    return isinstance(node, Node) and isinstance(value(node), int | torch.SymInt)


class Unsized(Exception):
    """A size depends on the values of tensors."""

    def __str__(self) -> str:
        return "its sizes depend on the values of tensors"


def hint(number: Any) -> int:
    """An integer of sizes as it was when the graph was traced. Raises Unsized."""
    if not isinstance(number, torch.SymInt):
        return int(number)
    known = number.node.hint
    if known is None:
        raise Unsized
    return int(known)


def shape(node: Any) -> tuple[int, ...]:
    """The shape of a node's tensor when the graph was traced; () where Dynamo noted none."""
    if not isinstance(value(node), torch.Tensor):
        return ()
    return tuple(hint(x) for x in value(node).shape)


def writes_to(node: Node) -> list[Node]:
    """The nodes whose memory a node changes."""
    changed = [x for name, x in node.kwargs.items() if name == "out"]
    first = node.args[0] if node.args else None
    if node.op == "call_function" and node.target in IN_PLACE:
        changed.append(first)
    if node.op == "call_method":
        name = str(node.target)
        if name.endswith("_") and not name.endswith("__"):
            changed.append(first)
    if node.kwargs.get("inplace") is True or (operation(node) == "dropout" and argument(node, 3, "inplace") is True):
        changed.append(first)
    return [x for x in changed if isinstance(x, Node)]


def owner(node: Node) -> Node:
    """The node whose memory a view shows."""
    while (operation(node) in VIEWS or node.target is operator.getitem) and isinstance(node.args[0], Node):
        node = node.args[0]
    return node


def chain(node: Node, through: frozenset[str]) -> Iterator[Node]:
    """A node and its only users, as long as these are one each and of the given operations."""
    while True:
        yield node
        users = list(node.users)
        if len(users) != 1 or operation(users[0]) not in through or users[0].args[:1] != (node,):
            return
        node = users[0]


def place(node: Node) -> str:
    """The module that a node comes from, as its path in the model; "" of a function.

    Dynamo writes L['self']._modules['encoder']._modules['0'] or L['self'].encoder.layer[0].
    """
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return ""
    path = str(list(stack.values())[-1][0])
    path = path.replace("['", ".").replace("']", "").replace('["', ".").replace('"]', "")
    path = path.replace("[", ".").replace("]", "").replace("()", "").replace("_modules.", "")
    parts = [part for part in path.split(".") if part not in ("L", "_orig_mod", "")]
    while parts and (parts[0] in ("self", "args", "kwargs") or parts[0].isdigit()):  # how Dynamo reached the model
        parts.pop(0)
    return ".".join(parts)
