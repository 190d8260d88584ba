"""What weft's backend found in a model, replaced, and left with the reason: as text, and drawn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.fusion.decide import Replaced


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
    """One graph that Dynamo traced. broken: why it ended before the function did, "" where it did not."""

    seen: list[Seen] = field(default_factory=list)
    broken: str = ""

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

    def __str__(self) -> str:
        return "\n".join(self._lines()) or "no graph was compiled yet"

    def _lines(self) -> Iterator[str]:
        for i, graph in enumerate(self.graphs):
            count = len(graph.seen)
            yield f"graph {i}: {count} attention{'s' * (count != 1)} found, {graph.replaced} replaced"
            for one in graph.seen:
                yield from (f"  {line}" for line in one.lines())
            if graph.broken:
                yield f"  the graph ends here: {graph.broken}"
