"""Where a streamed axis runs through a diagram, and the loops that follow from it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from weft.errors import RelabelError
from weft.napkin.diagram import Box, Diagram
from weft.napkin.operations import Accumulator


@dataclass(frozen=True)
class Region:
    """The boxes that a streamed axis runs through: `maps` are woven over it, `ends` accumulate over it."""

    maps: tuple[Box, ...]
    ends: tuple[Box, ...]


def region_of(diagram: Diagram, axis: str, asked: str) -> Region:
    """The boxes that a stream of `axis` runs through, or RelabelError with the one that cannot be streamed."""
    maps, ends = [], []
    ended: set[str] = set()
    for box in diagram.boxes:
        carries = axis in {name for array in box.inputs for name in diagram.array(array).names}
        if box.output in ended or ended & set(box.inputs):
            ended.add(box.output)
            if carries:
                wrong = f"{box.operation.name} ({box}) needs what all of {axis} accumulates to, and {axis} again"
                raise RelabelError(asked, wrong, "fuse the two passes into one operation with an accumulator")
        if not carries:
            continue
        if axis not in box.over:
            maps.append(box)
        elif box.operation.accumulator is not None:
            ends.append(box)
            ended.add(box.output)
        else:
            raise RelabelError(
                asked, f"{box.operation.name} over {axis} ({box}) has no accumulator",
                f"fuse {box.operation.name} with the contraction after it, if it is a known pair",
            )  # fmt: skip
    left = [name for name in diagram.outputs if axis in diagram.array(name).names]
    if left or not ends:
        wrong = f"output {left[0]} keeps {axis}" if left else f"no operation accumulates over {axis}"
        raise RelabelError(asked, wrong, f"group {axis} instead")
    return Region(tuple(maps), tuple(ends))


def accumulator(box: Box) -> Accumulator:
    """The accumulator of a box that ends a region."""
    assert box.operation.accumulator is not None  # region_of lets no other box end one
    return box.operation.accumulator


@dataclass(frozen=True)
class Loop:
    """A loop over chunks of axes: `body` on each chunk, then `ends` take it in."""

    axes: tuple[str, ...]
    body: Program
    ends: tuple[Box, ...]


Program: TypeAlias = tuple["Box | Loop", ...]


def program(diagram: Diagram, boxes: Iterable[Box], streams: tuple[str, ...]) -> Program:
    """The boxes with a loop for each streamed axis, the first outermost; axes that end together share a loop."""
    boxes = tuple(boxes)
    if not streams:
        return boxes
    axis = streams[0]
    region = region_of(diagram, axis, f"stream {axis}")
    ends = tuple(box for box in boxes if box in region.ends)
    maps = tuple(box for box in boxes if box in region.maps)
    together = tuple(s for s in streams if any(s in box.over for box in ends))
    rest = tuple(s for s in streams if s not in together)
    before, after = _sides(boxes, (*maps, *ends), {box.output for box in ends})
    outer, inner, later = (program(diagram, part, _ending(rest, part)) for part in (before, maps, after))
    return (*outer, Loop(together, inner, ends), *later)


def loops(nodes: Program) -> list[Loop]:
    """Every loop of a program, outer ones first."""
    return [loop for node in nodes if isinstance(node, Loop) for loop in (node, *loops(node.body))]


def _sides(boxes: tuple[Box, ...], looped: tuple[Box, ...], results: set[str]) -> tuple[list[Box], list[Box]]:
    """The boxes outside a loop: those that do not need its results, and those that do."""
    before: list[Box] = []
    after: list[Box] = []
    for box in boxes:
        if box in looped:
            continue
        late = bool(results & set(box.inputs))
        if late:
            results.add(box.output)
        (after if late else before).append(box)
    return before, after


def _ending(streams: tuple[str, ...], boxes: Iterable[Box]) -> tuple[str, ...]:
    """The streams that end in one of the boxes."""
    boxes = tuple(boxes)
    return tuple(s for s in streams if any(s in box.over for box in boxes))
