"""Segmentations of a layer as STOF has them: a digit an operator, equal neighbours one segment; which are legal.

(STOF: arXiv 2506.06095.) A segment is what one kernel would compute; what is legal is what a kernel could do at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, product

from weft.fusion.operators import Array, Layer, Operator
from weft.target import Gpu

Segment = range  # of operators
ROWS = 64  # rows of a tile of a product
ACCUMULATOR = 4  # bytes of a sum


def segments(scheme: str) -> list[Segment]:
    """The segments of a scheme.

    >>> segments("0011101")
    [range(0, 2), range(2, 5), range(5, 6), range(6, 7)]
    """
    found, first = [], 0
    for _, digits in groupby(scheme):
        last = first + len(list(digits))
        found.append(range(first, last))
        first = last
    return found


def scheme(parts: Sequence[Segment]) -> str:
    """The scheme of segments that follow each other; it begins with 0."""
    return "".join("01"[i % 2] * len(part) for i, part in enumerate(parts))


def every_scheme(count: int) -> Iterator[str]:
    """All segmentations of so many operators."""
    for flips in product((0, 1), repeat=max(0, count - 1)):
        digits, now = ["0"], 0
        for flip in flips:
            now ^= flip
            digits.append(str(now))
        yield "".join(digits)


def unfused(layer: Layer) -> str:
    """As Inductor leaves a layer: products, attention and what is unknown alone, neighbours of the rest together."""
    parts: list[Segment] = []
    for i, one in enumerate(layer.operators):
        joins = parts and one.kind in ("pointwise", "norm") and layer.operators[i - 1].kind in ("pointwise", "norm")
        if joins:
            parts[-1] = range(parts[-1].start, i + 1)
        else:
            parts.append(range(i, i + 1))
    return scheme(parts)


def reason_against(layer: Layer, part: Segment, gpu: Gpu) -> str:
    """Why no kernel computes a segment; "" where one could."""
    if len(part) == 1:
        return ""
    inside = [layer.operators[i] for i in part]
    kinds = [one.kind for one in inside]
    if "other" in kinds:
        return "it has an operator that is not known"
    if "attention" in kinds:
        after = kinds[kinds.index("attention") + 1 :]
        good = kinds[0] == "attention" and set(after) <= {"pointwise"}
        return "" if good else "attention takes operators of single elements after it alone"
    places = [i for i, kind in zip(part, kinds, strict=True) if kind == "product"]
    if len(places) > 2:
        return "it has more than two products"
    if not places:
        return ""
    return _before(layer, part, places[0]) or _two(layer, places, gpu) or _after(layer, part, places[0], gpu)


def _before(layer: Layer, part: Segment, first: int) -> str:
    """What stands before a product is computed again for each tile of its columns."""
    for i in range(part.start, first):
        one = layer.operators[i]
        if layer.read_outside(one.writes, part):
            return "what is before the product is read elsewhere too"
        if len(_activations(one)) > 1:
            return "what is before the product reads more than it writes"
        if one.kind == "norm" and i != first - 1:
            return "a norm is followed by more than the product"
    return ""


def _two(layer: Layer, places: Sequence[int], gpu: Gpu) -> str:
    if len(places) < 2:
        return ""
    one, other = (layer.operators[i] for i in places)
    between = [layer.operators[i] for i in range(places[0], places[1])]
    if not any(array.name in {x.writes.name for x in between} for array in other.reads):
        same = {array.name for array in _activations(one)} == {array.name for array in _activations(other)}
        return "" if same else "its products read different rows"
    row = between[-1].writes
    return "" if _held(row, gpu) else "what is between its products has no room on a processor"


def _after(layer: Layer, part: Segment, first: int, gpu: Gpu) -> str:
    made = {layer.operators[first].writes.name}
    for i in range(first + 1, part.stop):
        one = layer.operators[i]
        if one.kind != "product" and not made & {array.name for array in one.reads}:
            return "what is after the product does not read its result"
        made.add(one.writes.name)
        if one.kind == "norm" and not _held(one.writes, gpu):
            return "a whole row of the norm has no room on a processor"
    return ""


def _activations(one: Operator) -> list[Array]:
    return [array for array in one.reads if not array.weight]


def _held(row: Array, gpu: Gpu) -> bool:
    """Whether rows of a tile stay on one processor, as sums."""
    return ROWS * row.width * ACCUMULATOR <= gpu.shared
