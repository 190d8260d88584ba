"""A layer drawn: its operators from top to bottom, frames round what one kernel computes, and what it moves.

Two columns, before and after fusion. A wire beside the frames is an array in memory. It goes from the kernel that
writes it to those that read it, and is the wider the more bytes it has. What each kernel moves stands beside its frame.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from weft.fusion.model import cost, moved, of_segment
from weft.fusion.operators import Array, Layer
from weft.fusion.search import Found
from weft.fusion.segments import Segment, segments, unfused
from weft.target import Gpu

COLOURS = {
    "product": "#1f5fbf", "attention": "#8a3ab9", "norm": "#2e8b3d", "pointwise": "#e07b00", "other": "#7a7a7a",
}  # fmt: skip
COLUMN, TOP, LEFT = 500, 100, 24  # pixels of a column, above it, beside it
WIRES, LANE, WIDEST = 76, 12, 7  # pixels for wires beside frames, between two of them, of the widest
ROW, GAP, FRAME = 26, 14, 10  # of an operator, between segments, of a frame around
BOX = 190  # width of an operator
MIB = 1 << 20


def svg(found: Found, gpu: Gpu, title: str = "") -> str:
    """The picture as SVG: left before fusion, as Inductor leaves the layer, right after it, as the search found it."""
    before = unfused(found.layer)
    columns = [
        (LEFT, before, "before: kernels as Inductor makes them"),
        (LEFT + COLUMN, found.scheme, "after: the best segments by prediction"),
    ]
    height = TOP + max(_height(digits) for _, digits, _ in columns) + 54
    body = [line for x, digits, name in columns for line in _column(found.layer, digits, gpu, x, name)]
    name = _text(LEFT, 30, title or f"a layer of {found.layer.name} on {gpu.name}", 17)
    width = LEFT + 2 * COLUMN
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="DejaVu Sans, Helvetica, Arial, sans-serif">'
    )
    ground = f'<rect width="{width}" height="{height}" fill="#ffffff"/>'
    return "\n".join([head, ground, name, *body, *_legend(height - 20), "</svg>"]) + "\n"


def _height(digits: str) -> int:
    parts = segments(digits)
    return len(digits) * ROW + len(parts) * (GAP + 2 * FRAME)


def _column(layer: Layer, digits: str, gpu: Gpu, x: int, name: str) -> Iterator[str]:
    total = cost(layer, digits, gpu)
    yield _text(x, 56, name, 13)
    summary = f"{total.nbytes / MIB:,.0f} MiB moved, {total.launches} kernels, {total.seconds * 1e6:,.0f} us predicted"
    yield _text(x, 74, summary, 12, "#555555")
    frames, y = [], TOP
    for part in segments(digits):
        frames.append((part, y, len(part) * ROW + 2 * FRAME))
        y += frames[-1][2] + GAP
    yield from _wires(layer, frames, x + WIRES)
    for part, top, _ in frames:
        yield from _segment(layer, part, gpu, x + WIRES, top)


def _wires(layer: Layer, frames: list[tuple[Segment, int, int]], x: int) -> Iterator[str]:
    """An array of activations each: written at the lower end of a frame, read at the upper end of others."""
    free = [0.0] * (WIRES // LANE)  # where each lane is free again
    bottom = frames[-1][1] + frames[-1][2] + GAP
    most = max(one.writes.nbytes for one in layer.operators)
    for array, start, stops in sorted(_moves(layer, frames, bottom), key=lambda one: one[1]):
        last = stops[-1]
        lane = next((i for i, until in enumerate(free) if until < start), len(free) - 1)
        free[lane] = last
        at, wide = x - (lane + 0.5) * LANE - 4, 1.2 + (WIDEST - 1.2) * array.nbytes / most
        begin = f"M {x} {start} H {at}" if start > TOP - GAP else f"M {at} {start}"
        ends = " ".join(f"M {at} {stop} H {x}" for stop in stops if stop < bottom)
        yield (
            f'<path d="{begin} V {last} {ends}" stroke="#1c1c1c" stroke-opacity="0.55" fill="none" '
            f'stroke-width="{wide:.1f}"><title>{escape(array.name)}: {array.nbytes / MIB:,.1f} MiB</title></path>'
        )


def _moves(
    layer: Layer, frames: list[tuple[Segment, int, int]], bottom: int
) -> Iterator[tuple[Array, float, list[float]]]:
    """(array, where it begins, where it is read) for each array of activations that goes through memory."""
    written: dict[str, tuple[Array, float]] = {}
    for part, y, height in frames:
        written |= {array.name: (array, y + height - FRAME / 2) for array in moved(layer, part)[1]}
    given = {array.name: array for part, _, _ in frames for array in moved(layer, part)[0] if not array.weight}
    for name, array in (given | {name: array for name, (array, _) in written.items()}).items():
        start = written[name][1] if name in written else TOP - GAP
        stops = [y + FRAME / 2 for part, y, _ in frames if name in {one.name for one in moved(layer, part)[0]}]
        yield array, start, [*stops, bottom] if name in layer.kept else stops


def _segment(layer: Layer, part: Segment, gpu: Gpu, x: int, y: int) -> Iterator[str]:
    """A frame, its operators, and beside it what is read and written."""
    height = len(part) * ROW + 2 * FRAME
    middle = x + FRAME + BOX // 2
    yield (
        f'<rect x="{x}" y="{y}" width="{BOX + 2 * FRAME}" height="{height}" rx="8" fill="#f4f4f4" stroke="#999999"'
        f' stroke-width="{2 if len(part) > 1 else 1}"/>'
    )
    for row, i in enumerate(part):
        one = layer.operators[i]
        top = y + FRAME + row * ROW
        yield (
            f'<rect x="{x + FRAME}" y="{top + 2}" width="{BOX}" height="{ROW - 4}" rx="4" fill="{COLOURS[one.kind]}"/>'
        )
        yield _text(middle, top + ROW / 2 + 4, one.name, 12, "#ffffff", "middle")
    reads, writes = moved(layer, part)
    activations, weights = ([a.nbytes for a in reads if a.weight is wanted] for wanted in (False, True))
    lines = [f"reads {sum(activations) / MIB:,.1f} MiB" + (f" and weights {sum(weights) / MIB:,.1f}" * bool(weights))]
    lines.append(f"writes {sum(a.nbytes for a in writes) / MIB:,.1f} MiB")
    lines[-1] += f", {of_segment(layer, part, gpu).seconds * 1e6:,.1f} us"
    for k, line in enumerate(lines):
        yield _text(x + BOX + 2 * FRAME + 12, y + height / 2 - 3 + 15 * k, line, 11.5, "#333333")


def _legend(y: float) -> Iterator[str]:
    x = LEFT
    for kind, colour in COLOURS.items():
        yield f'<rect x="{x}" y="{y - 10}" width="12" height="12" rx="2" fill="{colour}"/>'
        yield _text(x + 18, y, kind, 12)
        x += 100
    yield _text(
        x + 10, y, "a frame is one kernel; a wire is an array in memory, the wider the more bytes", 12, "#555555"
    )


def _text(x: float, y: float, text: str, size: float, colour: str = "#1c1c1c", anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}" fill="{colour}" text-anchor="{anchor}">{escape(text)}</text>'


def lines(found: Found, gpu: Gpu) -> Iterator[str]:
    """The same as text: each segment with what it moves, against one operator after the other."""
    layer = found.layer
    before = cost(layer, unfused(layer), gpu)
    yield f"layer {layer.name}: {len(layer)} operators, scheme {found.scheme}, predicted on {gpu.name}"
    for name, total in (("before", before), ("after", found.cost)):
        moved_bytes = f"{total.nbytes / MIB:,.1f} MiB in {total.launches} kernels"
        yield f"  {name:<7} {total.seconds * 1e6:9,.1f} us, {moved_bytes}"
    for part in segments(found.scheme):
        one = of_segment(layer, part, gpu)
        names = ", ".join(layer.operators[i].name for i in part)
        word = "fused" if len(part) > 1 else "apart"
        yield f"  {word}   {one.seconds * 1e6:9,.1f} us, {one.nbytes / MIB:8,.1f} MiB: {names}"
    yield f"  {found.evaluations} segmentations priced, {len(found.moves)} moves kept"
