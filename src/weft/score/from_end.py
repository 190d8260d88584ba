"""Reads of tables by negative indices, which count from the end in Python, numpy and torch, and in FlexAttention."""

from __future__ import annotations

import math
from functools import lru_cache

from weft.score.expression import Builder
from weft.score.ranges import Interval, intervals
from weft.score.text import SEPARATOR, parse, written

Sizes = tuple[int, int, int, int]  # B, Hq, M, N
Shapes = tuple[tuple[int, ...], ...]
NATURAL = (0.0, math.inf)  # entries of tables of integers, as far as nobody looks


@lru_cache(512)
def counted_from_the_end(text: str, shapes: Shapes, sizes: Sizes) -> str:
    """The function with `i % length` for each index i that may be negative, and lies within the table otherwise.

    Any other index is left as it is, so that a read beyond the end is refused. shapes: of the tables; text: of one
    function, or of several, which count their tables one after the other.
    """
    done = []
    for part in text.split(SEPARATOR):
        count = len(parse(part).tables)
        done.append(_counted(part, shapes[:count], sizes))
        shapes = shapes[count:]
    return SEPARATOR.join(done)


def _counted(text: str, shapes: Shapes, sizes: Sizes) -> str:
    expression, build = parse(text), Builder()
    limits: dict[str, Interval] = {name: (0, size - 1) for name, size in zip("bhqk", sizes, strict=True)}
    found = intervals(expression, {**limits, "shift": (0, 0)}, shapes, lambda _: NATURAL)
    place: list[int] = []
    for step in expression.steps:
        args = [place[a] for a in step.args]
        for axis, a in enumerate(step.args) if step.op == "read" else ():
            length, (low, high) = shapes[step.value][axis], found[a]
            if -length <= low < 0 and high < length:
                args[axis] = build.divided("mod", args[axis], build.size(step.value, axis))
        place.append(build.step(step.op, step.kind, tuple(args), step.value))
    return written(build.expression(place[-1]))
