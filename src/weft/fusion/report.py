"""What weft's backend found in a model, replaced, and left with the reason: as text, and drawn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from weft.errors import OptionError
from weft.fusion.operators import Layer
from weft.fusion.picture import lines, svg
from weft.fusion.search import Found, alike
from weft.target import GPUS, Gpu

if TYPE_CHECKING:
    from weft.fusion.decide import Replaced
    from weft.fusion.place import Placed

TARGET = "h200"  # the GPU that segments are predicted for
NOTE = "schemes are predictions; what runs is listed for each graph as fused or apart, and was measured"


@dataclass(frozen=True)
class Seen:
    """One attention of a graph. where: the module that it comes from. form: how the graph writes it. reason: why it
    stays, "" where it is replaced. share: of all pairs, what is kept or computed. mask: what was recognised.
    """

    where: str
    form: str
    reason: str = ""
    share: float = 1.0
    mask: str = ""
    replaced: Replaced | None = None

    def lines(self) -> Iterator[str]:
        """As text; with what was decided at later calls, where that differs."""
        name = self.where or "the function"
        if self.reason:
            yield f"left      {name}: {self.form}"
            yield f"          because {self.reason}"
            return
        yield f"replaced  {name}: {self.form}"
        yield f"          by weft.attention under {self.mask}, {self.share:.0%} of the pairs in tiles"
        for said, count in self.replaced.met.items() if self.replaced is not None else ():
            if said != self.mask:
                yield f"          at {count} later masks: {said}"


@dataclass
class GraphReport:
    """One graph that Dynamo traced. broken: why it ended before the function did, "" where it did not. layers: its
    operators, by numbered module. captured: "" where nobody asked for CUDA graphs, else whether it has some, in words.
    """

    seen: list[Seen] = field(default_factory=list)
    broken: str = ""
    layers: list[Layer] = field(default_factory=list)
    captured: str = ""
    segments: list[Placed] = field(default_factory=list)

    @property
    def replaced(self) -> int:
        """How many attentions are replaced."""
        return sum(not one.reason for one in self.seen)


@dataclass
class Explanation:
    """All graphs of a model, in the order in which they were compiled; `str()` prints it.

    >>> print(Explanation())
    no graph was compiled yet
    """

    graphs: list[GraphReport] = field(default_factory=list)

    @property
    def seen(self) -> list[Seen]:
        """Every attention of all graphs."""
        return [one for graph in self.graphs for one in graph.seen]

    @property
    def replaced(self) -> list[Seen]:
        """Those that weft computes."""
        return [one for one in self.seen if not one.reason]

    @property
    def left(self) -> list[Seen]:
        """Those that stay, each with its reason."""
        return [one for one in self.seen if one.reason]

    def segments(self, target: str = TARGET) -> list[tuple[Found, list[str]]]:
        """(the segmentation found, names of the layers that have it), for each kind of layer, predicted on a GPU."""
        layers = {(layer.name, layer.fingerprint): layer for graph in self.graphs for layer in graph.layers}
        return alike(list(layers.values()), _gpu(target))

    def svg(self, kind: int = 0, target: str = TARGET) -> str:
        """The picture of one kind of layer, counted from 0: what it moves before and after fusion.

        Raises OptionError where there is no such layer or no such target.
        """
        found = self.segments(target)
        if not 0 <= kind < len(found):
            raise OptionError(
                f"svg(kind={kind})", f"{len(found)} kinds of layers were found", "count from 0, and run the model first"
            )
        return svg(found[kind][0], _gpu(target), f"{found[kind][1][0]} on {target}")

    def __str__(self) -> str:
        return self.text()

    def text(self, target: str = TARGET) -> str:
        """As printed; segments are predicted for a GPU."""
        return "\n".join(self._lines(target)) or "no graph was compiled yet"

    def _lines(self, target: str) -> Iterator[str]:
        for i, graph in enumerate(self.graphs):
            count = len(graph.seen)
            yield f"graph {i}: {count} attention{'s' * (count != 1)} found, {graph.replaced} replaced"
            for one in graph.seen:
                yield from (f"  {line}" for line in one.lines())
            for said, places in _alike(graph.segments):
                yield from (f"  {line}" for line in said)
                if places > 1:
                    yield f"          and so in {places - 1} more"
            if graph.captured:
                yield f"  CUDA graphs: {graph.captured}"
            if graph.broken:
                yield f"  the graph ends here: {graph.broken}"
        for found, names in self.segments(target):
            yield f"{len(names)} layer{'s' * (len(names) != 1)} alike: {_shortened(names)}"
            yield from (f"  {line}" for line in lines(found, _gpu(target)))
        if any(graph.layers for graph in self.graphs):
            yield NOTE


def _alike(segments: list[Placed]) -> Iterator[tuple[list[str], int]]:
    """(lines of the first, how many there are) of segments that are the same thing for the same reason."""
    groups: dict[tuple[str, str], list[Placed]] = {}
    for one in segments:
        groups.setdefault((one.what, one.reason), []).append(one)
    for same in groups.values():
        yield list(same[0].lines()), len(same)


def _shortened(names: list[str]) -> str:
    return ", ".join(names) if len(names) < 4 else f"{names[0]}, {names[1]}, ... {names[-1]}"


def _gpu(target: str) -> Gpu:
    if target not in GPUS:
        raise OptionError(f"target={target!r}", "the GPU is not known", f"name one of {', '.join(GPUS)}")
    return GPUS[target]
