"""The best segmentation of a layer: searched by moves, and by the two oracles that the search is held against.

A move changes one boundary. A segment swallows its neighbour (expand). One with a product takes an operator of one
without (seize). Of two with products the one with fewer takes what the other has beside its products (compete). One of
two products may be parted by that. What is not faster is rolled back. (STOF's first stage: arXiv 2506.06095.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from weft.fusion.model import Cost, cost, is_legal, of_segment
from weft.fusion.operators import Layer
from weft.fusion.segments import Segment, every_scheme, reason_against, scheme, segments, unfused
from weft.target import Gpu

Move = tuple[str, str]  # its name, the scheme that it leads to


@dataclass
class Found:
    """A segmentation. tried: schemes whose cost was asked for. moves: those that were kept, as (name, scheme)."""

    layer: Layer
    scheme: str
    cost: Cost
    tried: dict[str, Cost] = field(default_factory=dict)
    moves: list[Move] = field(default_factory=list)

    @property
    def evaluations(self) -> int:
        """How many schemes were priced."""
        return len(self.tried)


def search(layer: Layer, gpu: Gpu) -> Found:
    """By moves, from products that take what follows them; what Inductor does is priced too, and is the floor."""
    tried: dict[str, Cost] = {}

    def price(digits: str) -> Cost:
        if digits not in tried:
            tried[digits] = cost(layer, digits, gpu)
        return tried[digits]

    start = _with_epilogues(layer, gpu)
    found = Found(layer, start, price(start), tried)
    while _improved(found, gpu, price):
        pass
    floor = unfused(layer)
    if price(floor).seconds <= found.cost.seconds:
        return Found(layer, floor, price(floor), tried)
    return found


def _with_epilogues(layer: Layer, gpu: Gpu) -> str:
    """Each segment takes the operators that follow it, as long as it stays legal and the next one is no product."""
    parts = [range(0, 1)]
    for i in range(1, len(layer)):
        longer = range(parts[-1].start, i + 1)
        if layer.operators[i].kind in ("pointwise", "norm") and not reason_against(layer, longer, gpu):
            parts[-1] = longer
        else:
            parts.append(range(i, i + 1))
    return scheme(parts)


def _improved(found: Found, gpu: Gpu, price: Callable[[str], Cost]) -> bool:
    """One pass over all boundaries; whether anything was kept."""
    kept, seen = False, set(found.tried)
    boundary = 1
    while boundary < len(found.scheme):
        for name, digits in moves(found.layer, found.scheme, boundary):
            if digits in seen or not is_legal(found.layer, digits, gpu):
                continue
            seen.add(digits)
            if price(digits).seconds < found.cost.seconds:
                found.scheme, found.cost, kept = digits, price(digits), True
                found.moves.append((name, digits))
                break
        boundary += 1
    return kept


def moves(layer: Layer, digits: str, boundary: int) -> Iterator[Move]:
    """The moves at the boundary before operator `boundary`; none where there is no boundary."""
    parts = segments(digits)
    right = next((i for i, part in enumerate(parts) if part.start == boundary), 0)
    if not right:
        return
    a, b = parts[right - 1], parts[right]
    rest = parts[: right - 1], parts[right + 1 :]

    def changed(*middle: Segment) -> str:
        return scheme([*rest[0], *(part for part in middle if len(part)), *rest[1]])

    of_a, of_b = _products(layer, a), _products(layer, b)
    yield "expand", changed(range(a.start, b.stop))
    tail, head = _ends(layer, a)[1], _ends(layer, b)[0]
    if of_a and not of_b and len(b) > 1:
        yield "seize", changed(range(a.start, a.stop + 1), range(b.start + 1, b.stop))
    elif of_b and not of_a and len(a) > 1:
        yield "seize", changed(range(a.start, a.stop - 1), range(b.start - 1, b.stop))
    elif of_a >= of_b > 0 and tail:
        yield "compete", changed(range(a.start, a.stop - tail), range(b.start - tail, b.stop))
        if of_a == 2:
            last = a.stop - tail - 1
            yield "compete", changed(range(a.start, last), range(last, last + 1), range(last + 1, b.stop))
    elif of_b > of_a > 0 and head:
        yield "compete", changed(range(a.start, a.stop + head), range(b.start + head, b.stop))


def _ends(layer: Layer, part: Segment) -> tuple[int, int]:
    """How many operators a segment has before its first product and after its last one."""
    places = [i for i in part if layer.operators[i].kind in ("product", "attention")] or [part.start]
    return places[0] - part.start, part.stop - 1 - places[-1]


def _products(layer: Layer, part: Segment) -> int:
    return sum(layer.operators[i].kind in ("product", "attention") for i in part)


# ---- oracles ---------------------------------------------------------------------------------------------------------
def exhaustive(layer: Layer, gpu: Gpu) -> Found:
    """The best of all legal segmentations, each priced: for small layers."""
    tried = {digits: cost(layer, digits, gpu) for digits in every_scheme(len(layer)) if is_legal(layer, digits, gpu)}
    best = min(tried, key=lambda digits: tried[digits].seconds)
    return Found(layer, best, tried[best], tried)


def best(layer: Layer, gpu: Gpu) -> Found:
    """The best of all legal segmentations, segment by segment: the cost of one is the sum over its segments.

    It holds for this model, and not for measurements, where neighbours share caches.
    """
    ends: list[tuple[float, list[Segment]]] = [(0.0, [])]
    for stop in range(1, len(layer) + 1):
        ways = []
        for start in range(stop):
            part = range(start, stop)
            if not reason_against(layer, part, gpu):
                ways.append((ends[start][0] + of_segment(layer, part, gpu).seconds, [*ends[start][1], part]))
        ends.append(min(ways, key=lambda way: way[0]))
    digits = scheme(ends[-1][1])
    return Found(layer, digits, cost(layer, digits, gpu))


def alike(layers: list[Layer], gpu: Gpu) -> list[tuple[Found, list[str]]]:
    """(what was found, names of the layers) for each fingerprint: layers that are alike are searched once."""
    by_print: dict[str, list[Layer]] = {}
    for layer in layers:
        by_print.setdefault(layer.fingerprint, []).append(layer)
    return [(search(same[0], gpu), [layer.name for layer in same]) for same in by_print.values()]
