"""What runs while Dynamo traces flex_attention: a function's graph becomes an expression or a pattern.

Dynamo reads the function as it does for torch's own flex_attention. Tensors that it captures, and what is made of them
alone, are inputs of the graph. So they are guarded, and have gradients, like any others. Its classes are private;
tests/integrations/flex holds them against the versions of torch that weft is tested with.
"""

from __future__ import annotations

import math
import operator
from itertools import chain
from typing import Any, NoReturn

import torch
from torch._dynamo.exc import unimplemented
from torch._dynamo.source import GlobalSource
from torch._dynamo.variables import higher_order_ops as dynamo
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.builder import wrap_fx_proxy
from torch._dynamo.variables.lists import TupleVariable
from torch.fx import Interpreter, Node, Proxy, map_arg

from weft.errors import WeftError
from weft.integrations.flex.graphs import mask_in_graph, score_in_graph
from weft.recognition import recognize_function
from weft.score.from_end import counted_from_the_end
from weft.score.tracer import Part, Trace, finished


class _Function(dynamo.FlexAttentionHigherOrderVariable):
    """How Dynamo reads a function of 0-d tensors."""

    _HOP_NAME = "weft.integrations.flex"

    def read(self, tx: Any, args: list[Any], name: str) -> tuple[Any, tuple[Proxy, ...]]:
        """(its graph, the values of the graph around it that it captures). args: a tensor, the function."""
        node, captured = self.create_wrapped_node(tx, *args, name)
        graph = tx.output.nn_modules[node.node.target]
        node.node.graph.erase_node(node.node)
        return graph, captured


class ScoreInGraph(_Function):
    """Answers `score_in_graph`."""

    def _call_function(self, tx: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        query, key, function = args
        graph, captured = self.read(tx, [query, function], "score_mod")
        trace = Trace()
        reading = _Reading(graph, trace, tx)

        def run(*values: Any) -> Any:
            return reading.run(*values, *captured)

        try:
            found = finished(trace, run, "flex_attention(score_mod) inside torch.compile", "score_mod")
        except WeftError as error:
            _stop(error)
        tables = [reading.variables[id(x)] for x in found.tables]
        q, k = (x.as_proxy().node.meta["example_value"].shape for x in (query, key))
        shapes, sizes, text = tuple(tuple(x.shape) for x in found.tables), (*q[:3], k[2]), found.text
        if all(type(x) is int for x in (*sizes, *chain(*shapes))):
            text = counted_from_the_end(text, shapes, sizes)
        return TupleVariable([VariableTracker.build(tx, text), TupleVariable(tables)])


class MaskInGraph(_Function):
    """Answers `mask_in_graph`."""

    def _call_function(self, tx: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        graph, captured = self.read(tx, args, "mask_fn")
        found = None if captured else _recognized(graph)
        if found is None:
            return VariableTracker.build(tx, None)
        return VariableTracker.build(tx, found, GlobalSource(tx.output.install_global_by_id("weft_pattern", found)))


def _recognized(graph: Any) -> Any:
    """The pattern of a mask function's graph; None where it has no closed form."""
    compiling = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = False  # a pattern is made here, and not traced
    try:
        return recognize_function(graph.forward).pattern
    except WeftError:
        return None
    finally:
        torch.compiler._is_compiling_flag = compiling


class _Reading(Interpreter):
    """One run of a function's graph. Values are traced; what no index is part of stays a proxy of the graph around it.

    variables: Dynamo's, by the identity of the fake tensor that stands for a table.
    """

    def __init__(self, graph: Any, trace: Trace, tx: Any) -> None:
        super().__init__(graph)
        self.trace, self.tx = trace, tx
        self.variables: dict[int, Any] = {}

    def run_node(self, n: Node) -> Any:
        if n.op in ("placeholder", "output"):
            return super().run_node(n)
        if all(isinstance(self.env[x], Proxy) for x in n.all_input_nodes):
            args, kwargs = (map_arg(x, self.env.__getitem__) for x in (n.args, n.kwargs))
            return self._around(n.op, n.target, args, kwargs).as_proxy()
        read = self._indexed if n.target is operator.getitem else self._operand
        args, kwargs = (map_arg(x, read) for x in (n.args, n.kwargs))
        return getattr(self, n.op)(n.target, args, kwargs)

    def output(self, target: Any, args: Any, kwargs: Any) -> Any:
        return self._table(args[0]) if isinstance(args[0], Proxy) else args[0]

    def _operand(self, node: Node) -> Any:
        """A number where there is one entry only."""
        value = self._indexed(node)
        return value.at((0,) * len(value.shape)) if isinstance(value, Part) and math.prod(value.shape) == 1 else value

    def _indexed(self, node: Node) -> Any:
        value = self.env[node]
        return self._table(value) if isinstance(value, Proxy) else value

    def _table(self, proxy: Proxy) -> Any:
        """What traced values read."""
        fake = proxy.node.meta["example_value"]
        if id(fake) not in self.variables:
            self.variables[id(fake)] = self._variable(proxy, fake)
        if isinstance(fake, (torch.SymInt, torch.SymFloat)):
            fake = self.variables[id(fake)].as_proxy().node.meta["example_value"]
            self.variables.setdefault(id(fake), self.variables[id(proxy.node.meta["example_value"])])
        return Part(self.trace, fake)

    def _variable(self, proxy: Proxy, fake: Any) -> Any:
        """A value of the graph around, which has a variable there already, as one more."""
        if isinstance(fake, (torch.SymInt, torch.SymFloat)):
            dtype = torch.int64 if isinstance(fake, torch.SymInt) else torch.float64
            return self._around("call_function", torch.scalar_tensor, (proxy,), {"dtype": dtype})
        return self._around("call_function", torch.ops.aten.alias.default, (proxy,), {})

    def _around(self, op: str, target: Any, args: Any, kwargs: Any) -> Any:
        """One more step of the graph around, as Dynamo's variable."""
        return wrap_fx_proxy(tx=self.tx, proxy=self.tx.output.create_proxy(op, target, args, kwargs))


def _stop(error: WeftError) -> NoReturn:
    """A break of the graph, after which the call outside of it says the same."""
    unimplemented(
        gb_type="weft.integrations.flex", context=error.asked, explanation=error.wrong, hints=[error.cure],
    )  # fmt: skip
    raise error


def register() -> bool:
    """Make Dynamo answer the questions; once is enough."""
    dynamo._hop_name_to_variable_class[score_in_graph.__name__] = ScoreInGraph
    dynamo._hop_name_to_variable_class[mask_in_graph.__name__] = MaskInGraph
    return True
