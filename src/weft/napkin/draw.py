"""Diagrams as SVG: wires, boxes on the axes that they work on, woven wires past them, dashed lines between arrays,
a colour for each level. A partitioned diagram shows its pieces, and what changes colour is what is transferred.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from weft.napkin.diagram import Array, Box, Diagram
from weft.napkin.relabel import Derivation
from weft.napkin.schedule import Loop, loops, program
from weft.outside import shown

COLOURS = {
    "network": "#7a7a7a",
    "global": "#1c1c1c",
    "cluster": "#8a3ab9",
    "shared": "#e07b00",
    "register": "#2e8b3d",
    "tensor": "#1f5fbf",
}
WIRE, GAP = 26, 26  # pixels between wires of an array, added between arrays
LOOP = "#b03060"
TOP, FRAME = 70, 22  # pixels above the first wire, and more for each frame
COLUMN, ROUTE, MARGIN = 66, 54, 30  # pixels of a column of wires, of the curves on each side of a box, at the sides
LETTER = 7.3  # pixels of a letter at 12 pixels


@dataclass(frozen=True)
class Wire:
    """A wire in a column: its axis, what is written on it, its height and its colour."""

    axis: str
    label: str
    y: float
    colour: str


@dataclass(frozen=True)
class Stack:
    """An array in a column."""

    array: str
    wires: tuple[Wire, ...]

    def wire(self, axis: str) -> Wire:
        return next(wire for wire in self.wires if wire.axis == axis)


@dataclass(frozen=True)
class Column:
    """The arrays that are alive between two boxes, from left to right edge."""

    stacks: tuple[Stack, ...]
    left: float
    right: float

    def stack(self, array: str) -> Stack:
        return next(stack for stack in self.stacks if stack.array == array)


def svg(what: Diagram | Derivation, title: str = "") -> str:
    """The picture of a diagram, or of a derivation's last diagram with its partitions."""
    derivation = what if isinstance(what, Derivation) else Derivation(what)
    picture = _Picture(derivation)
    return picture.text(title or derivation.diagram.name)


class _Picture:
    """Columns first, then everything between them."""

    def __init__(self, derivation: Derivation) -> None:
        self.derivation, self.diagram = derivation, derivation.diagram
        self.frames: list[str] = []  # outer ones first
        self.back: list[str] = []  # wires
        self.front: list[str] = []  # boxes and labels
        self.levels: set[str] = set()
        axes = tuple(dict.fromkeys(p.axis for p in derivation.partitions if p.kind == "stream"))
        self.loops = loops(program(self.diagram, self.diagram.boxes, axes))
        self.groups = [p for p in derivation.partitions if p.kind == "group"]
        self.top = TOP + FRAME * (len(self.loops) + bool(self.groups))
        self.right = float(MARGIN)
        self.bottom = 0.0
        self._build()

    def _build(self) -> None:
        cut = {p.level for p in self.derivation.partitions}
        live = list(self.diagram.inputs)
        orders = self._orders()
        columns = [self._column(live, orders, outside=True)]
        if cut:
            self.right += ROUTE
            columns.append(self._column(live, orders))
            self._transfer(columns[-2], columns[-1])
        edges = []
        for i, box in enumerate(self.diagram.boxes):
            live = self._together(live, box)
            if [s.array for s in columns[-1].stacks] != live:
                self.right += ROUTE
                columns.append(self._column(live, orders))
                self._transfer(columns[-2], columns[-1])
            live = self._after(live, i)
            width = LETTER * len(_label(box)) + 18
            at = self.right + ROUTE
            self.right += 2 * ROUTE + width
            columns.append(self._column(live, orders))
            self._box(box, columns[-2], columns[-1], (at, at + width))
            edges.append((at, at + width))
        if cut:
            self.right += ROUTE
            columns.append(self._column(live, orders, outside=True))
            self._transfer(columns[-2], columns[-1])
        for column in columns:
            self._separators(column)
        if cut:
            self._frames(edges, columns)

    # ---- columns -----------------------------------------------------------------------------------------------------
    def _orders(self) -> dict[str, tuple[str, ...]]:
        """The order of wires of every array: those that its first reader works on lie towards the other input."""
        found = {}
        for array in self.diagram.arrays:
            reader = next((box for box in self.diagram.boxes if array.name in box.inputs), None)
            over = [name for name in array.names if reader is not None and name in reader.over]
            woven = [name for name in array.names if name not in over]
            first = reader is None or reader.inputs[0] == array.name
            found[array.name] = tuple(woven + over if first else over + woven)
        return found

    def _column(self, live: Iterable[str], orders: dict[str, tuple[str, ...]], *, outside: bool = False) -> Column:
        stacks, y = [], float(self.top)
        for name in live:
            array = self.diagram.array(name)
            wires = []
            for axis in orders[name]:
                wires.append(Wire(axis, self._size(axis, outside), y, COLOURS[self._level(array, outside)]))
                y += WIRE
            stacks.append(Stack(name, tuple(wires)))
            y += GAP
            self.levels.add(self._level(array, outside))
        column = Column(tuple(stacks), self.right, self.right + COLUMN)
        self.right += COLUMN
        self.bottom = max(self.bottom, y - GAP)
        for stack in stacks:
            self._wires(stack, column)
        return column

    def _level(self, array: Array, outside: bool) -> str:
        """Where an array is drawn: in a group its inputs and outputs lie at the level of the group."""
        ends = array.name in (*self.diagram.inputs, *self.diagram.outputs)
        levels = [p.level for p in self.derivation.partitions]
        return array.level if outside or not ends or not levels else levels[0]

    def _size(self, axis: str, outside: bool) -> str:
        cuts = [p for p in self.derivation.partitions if p.axis == axis]
        if outside or not cuts:
            return axis
        return cuts[-1].symbol if cuts[-1].size is None else str(cuts[-1].size)

    def _wires(self, stack: Stack, column: Column) -> None:
        for wire in stack.wires:
            self.back.append(_path(f"M {column.left} {wire.y} H {column.right}", wire.colour))
            self.front.append(_text((column.left + column.right) / 2, wire.y - 5, wire.label, wire.colour))
        top = stack.wires[0].y if stack.wires else self.top
        self.front.append(_text(column.left + 4, top - 18, stack.array, "#777", size=11))

    def _separators(self, column: Column) -> None:
        for above, below in pairwise(column.stacks):
            y = (above.wires[-1].y + below.wires[0].y) / 2 - 5
            line = f'<path d="M {column.left} {y} H {column.right}" stroke="#999" stroke-dasharray="4 4"/>'
            self.back.append(line)

    # ---- between columns ---------------------------------------------------------------------------------------------
    def _together(self, live: list[str], box: Box) -> list[str]:
        """The inputs of a box beside each other, in its order, where the first of them is."""
        place = min(live.index(name) for name in box.inputs)
        rest = [name for name in live if name not in box.inputs]
        return rest[:place] + list(box.inputs) + rest[place:]

    def _after(self, live: list[str], i: int) -> list[str]:
        """What is alive after box i: its output in the place of its inputs, and what is still read."""
        box = self.diagram.boxes[i]
        needed = {name for later in self.diagram.boxes[i + 1 :] for name in later.inputs} | set(self.diagram.outputs)
        place = live.index(box.inputs[0])
        before, after = live[:place], live[place:]
        return [n for n in before if n in needed] + [box.output] + [n for n in after if n in needed]

    def _transfer(self, left: Column, right: Column) -> None:
        for stack in left.stacks:
            for wire in stack.wires:
                self._curve((left.right, wire.y), (right.left, right.stack(stack.array).wire(wire.axis).y), wire.colour,
                            right.stack(stack.array).wire(wire.axis).colour)  # fmt: skip

    def _curve(self, a: tuple[float, float], b: tuple[float, float], colour: str, into: str = "") -> None:
        """A wire from a to b; where it changes colour, its second half has the new one."""
        middle, height = (a[0] + b[0]) / 2, (a[1] + b[1]) / 2
        if not into or into == colour:
            self.back.append(_path(f"M {a[0]} {a[1]} C {middle} {a[1]} {middle} {b[1]} {b[0]} {b[1]}", colour))
            return
        quarter, last = (a[0] + middle) / 2, (middle + b[0]) / 2
        self.back.append(_path(f"M {a[0]} {a[1]} Q {quarter} {a[1]} {middle} {height}", colour))
        self.back.append(_path(f"M {middle} {height} Q {last} {b[1]} {b[0]} {b[1]}", into))

    def _box(self, box: Box, left: Column, right: Column, edges: tuple[float, float]) -> None:
        ins = [left.stack(name) for name in box.inputs]
        out = right.stack(box.output)
        passing = {stack.array for stack in right.stacks} - {box.output}
        for stack in left.stacks:
            for wire in stack.wires if stack.array in passing else ():
                self._past(left, edges, wire, (right, right.stack(stack.array).wire(wire.axis)))
        worked = [wire for stack in ins for wire in stack.wires if wire.axis in box.over]
        heights = [wire.y for wire in worked] or [ins[0].wires[0].y - WIRE]
        low, high = min(heights) - 11, max(heights) + 11
        for wire in (wire for stack in ins for wire in stack.wires):
            if wire.axis in box.over:
                self.back.append(_path(f"M {left.right} {wire.y} H {edges[0]}", wire.colour))
            else:
                self._past(left, edges, wire, (right, out.wire(wire.axis)))
        for wire in out.wires:
            if wire.axis in box.over:
                self._curve((edges[1], min(max(wire.y, low + 11), high - 11)), (right.left, wire.y), wire.colour)
        self._pill(edges, (low, high), _label(box))

    def _past(self, left: Column, edges: tuple[float, float], wire: Wire, end: tuple[Column, Wire]) -> None:
        """A woven wire: straight past the box, then to its place in the next column."""
        column, other = end
        self.back.append(_path(f"M {left.right} {wire.y} H {edges[1]}", wire.colour))
        self._curve((edges[1], wire.y), (column.left, other.y), wire.colour, other.colour)

    def _pill(self, edges: tuple[float, float], sides: tuple[float, float], label: str) -> None:
        (a, b), (low, high) = edges, sides
        self.front.append(
            f'<rect x="{a:.1f}" y="{low:.1f}" width="{b - a:.1f}" height="{high - low:.1f}" rx="7" fill="white" '
            'stroke="#1c1c1c" stroke-width="1.4"/>'
        )
        self.front.append(_text((a + b) / 2, (low + high) / 2 + 4, label, "#1c1c1c"))

    # ---- partitions --------------------------------------------------------------------------------------------------
    def _frames(self, edges: list[tuple[float, float]], columns: list[Column]) -> None:
        """A frame around what one group does, and one around each loop."""
        high = TOP - 34
        if self.groups:
            text = "group: " + ", ".join(self._size(p.axis, False) for p in self.groups)
            inside = columns[1].left - 8, columns[-2].right + 8
            self._frame(inside, (high, self.bottom + 8), text, COLOURS[self.groups[0].level])
            high += FRAME
        for depth, loop in enumerate(self.loops):
            mine = [e for e, box in zip(edges, self.diagram.boxes, strict=True) if box in _boxes(loop)]
            text = "loop: " + ", ".join(self._size(axis, False) for axis in loop.axes)
            across = mine[0][0] - 20 + 10 * depth, mine[-1][1] + 20 - 10 * depth
            self._frame(across, (high + FRAME * depth, self.bottom - 2 - 10 * depth), text, LOOP)

    def _frame(self, across: tuple[float, float], down: tuple[float, float], label: str, colour: str) -> None:
        (a, b), (low, high) = across, down
        self.frames.append(
            f'<rect x="{a:.1f}" y="{low:.1f}" width="{b - a:.1f}" height="{high - low:.1f}" rx="10" fill="{colour}" '
            f'fill-opacity="0.04" stroke="{colour}" stroke-dasharray="7 4"/>',
        )
        self.front.append(_text(a + 10, low + 14, label, colour, anchor="start"))

    # ---- text --------------------------------------------------------------------------------------------------------
    def text(self, title: str) -> str:
        """The whole file."""
        known = [level for level in COLOURS if level in self.levels]
        x, legend = float(MARGIN), []
        for level in known:
            legend.append(_path(f"M {x} {self.bottom + 34} h 22", COLOURS[level]))
            legend.append(_text(x + 28, self.bottom + 38, level, COLOURS[level], anchor="start"))
            x += 28 + LETTER * len(level) + 22
        width, height = max(self.right, x, LETTER * len(title) * 1.3) + MARGIN, self.bottom + 56
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
            f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="monospace">'
        )
        ground = f'<rect width="{width:.0f}" height="{height:.0f}" fill="white"/>'
        name = _text(MARGIN, 22, title, "#1c1c1c", size=15, anchor="start")
        return "\n".join([head, ground, *self.frames, *self.back, *self.front, name, *legend, "</svg>"]) + "\n"


def _boxes(loop: Loop) -> tuple[Box, ...]:
    """The boxes of a loop, those of inner loops included."""
    inner = [box for node in loop.body for box in (_boxes(node) if isinstance(node, Loop) else (node,))]
    return (*inner, *loop.ends)


def _label(box: Box) -> str:
    return box.operation.name + "".join(f" {r.keys}|{r.rows}" for r in box.readings)


def _path(d: str, colour: str) -> str:
    return f'<path d="{d}" fill="none" stroke="{colour}" stroke-width="1.8"/>'


def _text(x: float, y: float, text: str, colour: str, *, size: int = 12, anchor: str = "middle") -> str:
    said = escape(shown(text))
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" font-size="{size}" text-anchor="{anchor}">{said}</text>'
    )  # fmt: skip
