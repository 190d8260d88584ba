"""Segments of a traced graph given to kernels, where these are chosen; what stays is said with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import getitem
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from weft.fusion.choice import Choice, choose, layer_seconds, settle_once, spec_words
from weft.fusion.epilogues import Found, products_in
from weft.fusion.kernels import ProjectionsSpec
from weft.fusion.layers import key_of
from weft.fusion.nodes import Unsized, value
from weft.fusion.rotations import projections_in
from weft.fusion.segment import FUSED, TRAINED, Fused, registered
from weft.fusion.settings import Settings
from weft.fusion.whole import Part, settle

Chooser = Callable[[Found, Settings], Choice]
Judged = tuple[Found, Choice]


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


def place_segments(
    module: GraphModule, settings: Settings, refused: str, given: Mapping[Node, Any] | None = None,
    chooser: Chooser = choose,
) -> list[Placed]:  # fmt: skip
    """Put kernels where they are chosen: each by itself, then those of a layer together.

    refused: why nothing of the graph may be replaced, or "". given: inputs of the graph.
    """
    if settings.templates == "off":
        return []
    judged = []
    for found, why in _founds(module.graph, settings):
        against = refused or why
        try:
            judged.append((found, Choice(None, against) if against else chooser(found, settings)))
        except Unsized as unsized:
            judged.append((found, Choice(None, str(unsized))))
        except Exception as error:  # of a compiler or a card: the graph is right without kernels
            said = f"it could not be measured: {type(error).__name__}: {_first_line(error)}"
            judged.append((found, Choice(None, said)))
    measured = settings.templates in ("auto", "again") and settings.inner == "inductor"
    if measured and not torch.is_grad_enabled():  # a layer is measured forwards
        judged = _settled(module, judged, given or {}, settings.templates == "again")
    else:
        judged = _alone(judged)
    put_all(module.graph, judged)
    if any(choice.config is not None for _, choice in judged):
        module.graph.lint()
        module.recompile()
    return [
        Placed(found.where, spec_words(found.spec), choice.config is not None, choice.reason, choice.dropped)
        for found, choice in judged
    ]


def _founds(graph: Graph, settings: Settings) -> Iterator[tuple[Found, str]]:
    """Segments, and why one stays where gradients are asked for, or ""."""
    for found in segments_in(graph):
        spec = found.spec
        if not torch.is_grad_enabled() or isinstance(spec, ProjectionsSpec):
            yield found, ""
        elif spec.residual:
            yield found, "gradients are asked for, and the compiler joins the sum to what is after it"
        else:
            yield replace(found, spec=replace(spec, keeps=settings.activations == "kept")), ""


def segments_in(graph: Graph) -> list[Found]:
    """All segments of a graph; no node is in two of them."""
    found = list(projections_in(graph))
    taken = {node for one in found for node in one.inner}
    return found + [one for one in products_in(graph) if not taken & set(one.inner)]


def _settled(module: GraphModule, judged: list[Judged], given: Mapping[Node, Any], again: bool) -> list[Judged]:
    """The same, where kinds of segments that slow down their layer are left."""
    kinds: dict[tuple[Any, ...], int] = {}
    named = [(one.spec, choice.config, *(value(x).shape for x in one.inputs)) for one, choice in judged]
    numbers = [kinds.setdefault(name, len(kinds)) for name in named]
    won = [i for i, (_, choice) in enumerate(judged) if choice.config is not None]
    if not won or not key_of(judged[won[0]][0].inner[0]):
        return _alone(judged)
    part = Part.around(judged[won[0]][0].inner[0])
    inside = [i for i in won if set(judged[i][0].inner) <= set(part.nodes)]
    values = part.values(given)
    if values is None or not inside:
        return _alone(judged)

    def seconds(some: frozenset[int]) -> float:
        return layer_seconds(part.copied([judged[i] for i in inside if numbers[i] in some], put_all, module), values)

    joined = {numbers[i] for i in inside if getattr(judged[i][0].spec, "residual", False)}
    try:
        code, chosen = part.copied([], put_all, module).code, [str(judged[i][1].config) for i in inside]
        numbered = sorted({numbers[i] for i in inside})
        settled = settle_once(code, chosen, values, lambda: settle(numbered, seconds, sorted(joined)), again)
    except Exception as error:
        said = f"; its layer could not be measured: {type(error).__name__}: {_first_line(error)}"
        return _alone([
            (found, replace(choice, reason=choice.reason + said)) if choice.config is not None else (found, choice)
            for found, choice in judged
        ])  # fmt: skip
    left, measured = {numbers[i] for i in inside} - settled.kept, {numbers[i] for i in inside}
    return [
        (found, replace(choice, config=None, reason=f"{choice.reason}, but {settled.reason_against(number)}"))
        if number in left else (found, choice if number in measured else choice.alone())
        for number, (found, choice) in zip(numbers, judged, strict=True)
    ]  # fmt: skip


def _alone(judged: list[Judged]) -> list[Judged]:
    """Without those that only a layer could judge."""
    return [(found, choice.alone()) for found, choice in judged]


def put_all(graph: Graph, judged: Sequence[Judged]) -> None:
    """Put the kernels that were chosen into a graph."""
    renamed: dict[Node, Node] = {}  # outputs of segments that stand before, by what stands for them now
    for found, choice in judged:
        if choice.config is not None:
            one = replace(found, inputs=tuple(renamed.get(node, node) for node in found.inputs))
            renamed |= _put(graph, one, registered(Fused(one.spec, one.unfused, choice.config)))


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "")


def _put(graph: Graph, found: Found, one: Fused) -> dict[Node, Node]:
    """Returns what stands for each output."""
    renamed = {}
    order = {node: i for i, node in enumerate(graph.nodes)}
    with graph.inserting_before(found.first_use(order)):
        operator = TRAINED if torch.is_grad_enabled() else FUSED
        call = graph.call_function(operator, (list(found.inputs), one.name))
        whole = graph.call_function(getitem, (call, 0))
        begin = 0
        for output in found.outputs:
            new = whole
            if isinstance(found.spec, ProjectionsSpec):
                new, begin = _columns(graph, whole, begin, found, output)
            shown = _as_it_was(graph, found, output, new)
            output.replace_all_uses_with(shown)
            shown.meta = dict(output.meta)
            renamed[output] = shown
    call.meta = {**found.outputs[0].meta, "example_value": [value(whole)]}
    for node in reversed(found.inner):
        if not node.users:
            graph.erase_node(node)
    return renamed


def _columns(graph: Graph, whole: Node, begin: int, found: Found, output: Node) -> tuple[Node, int]:
    """(the columns of a query, key or value among all, where the next one's begin)."""
    x = value(output)
    flat = x.transpose(1, 2).flatten(2) if x.dim() == 4 else x
    width = int(flat.shape[-1])
    if "example_value" not in whole.meta:
        axis = 1 if found.spec.by_rows else 0
        total = sum(int(value(weight).shape[axis]) for weight in found.inputs[1:4])
        whole.meta["example_value"] = flat.new_empty((*flat.shape[:-1], total))
    new = graph.call_method("narrow", (whole, -1, begin, width))
    new.meta["example_value"] = value(whole).narrow(-1, begin, width)
    return new, begin + width


def _as_it_was(graph: Graph, found: Found, output: Node, new: Node) -> Node:
    """The operator's result in the shape that an output had."""
    for view in found.after:
        new.meta["example_value"] = value(view).view(value(found.inner[0]).shape)
        return graph.call_method(str(view.target), (new, *view.args[1:]), dict(view.kwargs))
    x = value(output)
    if isinstance(found.spec, ProjectionsSpec) and x.dim() == 3:
        return new
    if isinstance(found.spec, ProjectionsSpec):
        heads = graph.call_method("unflatten", (new, -1, (int(x.shape[1]), found.spec.d)))
        heads.meta["example_value"] = value(new).unflatten(-1, (int(x.shape[1]), found.spec.d))
        return graph.call_method("transpose", (heads, 1, 2))
    new.meta["example_value"] = x
    return new
