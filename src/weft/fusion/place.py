"""Segments of a traced graph given to kernels, where these are chosen; what stays is said with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from operator import getitem

import torch
from torch.fx import Graph, GraphModule, Node

from weft.fusion.choice import Choice, choose, spec_words
from weft.fusion.epilogues import Found, products_in
from weft.fusion.kernels import ProjectionsSpec
from weft.fusion.nodes import Unsized, value
from weft.fusion.rotations import projections_in
from weft.fusion.segment import FUSED, Fused, registered
from weft.fusion.settings import Settings

Chooser = Callable[[Found, Settings], Choice]


@dataclass(frozen=True)
class Placed:
    """A segment that was found. fused: whether a kernel computes it. reason: why, or why not."""

    where: str
    what: str
    fused: bool
    reason: str
    dropped: tuple[str, ...] = ()

    def lines(self) -> Iterator[str]:
        """As text."""
        yield f"{'fused ' if self.fused else 'apart '}    {self.where or 'the function'}: {self.what}"
        yield f"          because {self.reason}"
        for one in self.dropped:
            yield f"          dropped {one}"


def place_segments(module: GraphModule, settings: Settings, refused: str, chooser: Chooser = choose) -> list[Placed]:
    """Put kernels where they are chosen. refused: why nothing of the graph may be replaced, or ""."""
    if settings.templates == "off":
        return []
    seen = []
    renamed: dict[Node, Node] = {}  # outputs of segments that stand before, by what stands for them now
    for find in (projections_in, products_in):
        for one in list(find(module.graph)):
            found = replace(one, inputs=tuple(renamed.get(node, node) for node in one.inputs))
            try:
                choice = Choice(None, refused) if refused else chooser(found, settings)
            except Unsized as unsized:
                choice = Choice(None, str(unsized))
            except Exception as error:  # of a compiler or a card: the graph is right without kernels
                choice = Choice(None, f"it could not be measured: {type(error).__name__}: {_first_line(error)}")
            seen.append(
                Placed(found.where, spec_words(found.spec), choice.config is not None, choice.reason, choice.dropped)
            )
            if choice.config is not None:
                renamed |= _put(module.graph, found, registered(Fused(found.spec, found.unfused, choice.config)))
    if any(one.fused for one in seen):
        module.graph.lint()
        module.recompile()
    return seen


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "")


def _put(graph: Graph, found: Found, one: Fused) -> dict[Node, Node]:
    """Returns what stands for each output."""
    renamed = {}
    order = {node: i for i, node in enumerate(graph.nodes)}
    with graph.inserting_before(found.first_use(order)):
        call = graph.call_function(FUSED, (list(found.inputs), one.name))
        for i, output in enumerate(found.outputs):
            new = graph.call_function(getitem, (call, i))
            shown = _as_it_was(graph, found, output, new)
            output.replace_all_uses_with(shown)
            shown.meta = dict(output.meta)
            renamed[output] = shown
    call.meta = {**found.outputs[0].meta, "example_value": [value(node) for node in found.outputs]}
    for node in reversed(found.inner):
        if not node.users:
            graph.erase_node(node)
    return renamed


def _as_it_was(graph: Graph, found: Found, output: Node, new: Node) -> Node:
    """The operator's result in the shape that an output had."""
    for view in found.after:
        new.meta["example_value"] = value(view).view(value(found.inner[0]).shape)
        return graph.call_method(str(view.target), (new, *view.args[1:]), dict(view.kwargs))
    x = value(output)
    if isinstance(found.spec, ProjectionsSpec) and x.dim() == 4:
        new.meta["example_value"] = torch.empty_like(x.transpose(1, 2).flatten(2))
        heads = graph.call_method("unflatten", (new, -1, (int(x.shape[1]), found.spec.d)))
        heads.meta["example_value"] = x.transpose(1, 2)
        return graph.call_method("transpose", (heads, 1, 2))
    new.meta["example_value"] = x
    return new
