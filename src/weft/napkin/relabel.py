"""Relabellings: group and stream partitions of an axis at a level, and the theorems that make them legal.

A `Derivation` is a diagram, its partitions and the steps that led there; every method returns a new one. What a
relabelled diagram computes is `weft.napkin.execute.run`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from weft.errors import RelabelError
from weft.napkin.diagram import LEVELS, Box, Diagram, check_level
from weft.napkin.operations import LEMMAS
from weft.napkin.schedule import accumulator, region_of


@dataclass(frozen=True)
class Partition:
    """One axis cut at a level. kind "group": independent pieces; "stream": pieces one after another.

    symbol: the name of the piece's size in formulas. size: a number, None while it is open.
    """

    kind: str
    axis: str
    level: str
    symbol: str
    size: int | None = None

    def __str__(self) -> str:
        return f"{self.kind} {self.axis} by {self.symbol if self.size is None else self.size} in {self.level}"


@dataclass(frozen=True)
class Step:
    """One step of a derivation: the rule applied, and what it did here."""

    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.text}"


@dataclass(frozen=True)
class Derivation:
    """A diagram on its way from an algorithm to a tiled one."""

    diagram: Diagram
    partitions: tuple[Partition, ...] = ()
    steps: tuple[Step, ...] = ()

    def fuse(self, operation: str) -> Derivation:
        """Replace the operation and the contraction that takes its result by the one operation that both are."""
        first = self._box(operation)
        for second in self.diagram.boxes:
            lemma = LEMMAS.get((first.operation, second.operation))
            if lemma is None or first.output not in second.inputs or first.over != second.over:
                continue
            others = tuple(name for name in second.inputs if name != first.output)
            box = Box(lemma, (*first.inputs, *others), second.output, second.over)
            if self._readers(first.output) > 1:
                break
            boxes = tuple(box if b is second else b for b in self.diagram.boxes if b is not first)
            arrays = tuple(a for a in self.diagram.arrays if a.name != first.output)
            text = f"{first} and {second} are {box}; {first.output} is never formed"
            return replace(self, diagram=replace(self.diagram, arrays=arrays, boxes=boxes))._with("lemma", text)
        raise RelabelError(
            f"fuse {first}",
            "no contraction over the same axes is its only reader",
            f"the known pairs are {', '.join(f'{a.name} then {b.name}' for a, b in LEMMAS)}",
        )

    def keep(self, name: str, level: str) -> Derivation:
        """Hold an array at another level."""
        was = self.diagram.array(name).level
        return replace(self, diagram=self.diagram.keep(name, level))._with("recolour", f"{name}: {was} to {level}")

    def group(self, axis: str, level: str, size: int | None = None) -> Derivation:
        """Cut an axis into independent groups: legal where every operation is mapped over it."""
        asked = f"group {axis} in {level}"
        self._check(asked, axis, level, size)
        for box in self.diagram.touching(axis):
            if axis in box.over:
                cure = "stream this axis, or group one that is woven"
                raise RelabelError(asked, f"{box.operation.name} works on {axis} ({box}): groups would share it", cure)
        new = self._partition("group", axis, level, size)
        text = f"{axis} is woven in every operation, so its groups are independent; {new}"
        return replace(self, partitions=(*self.partitions, new))._with("group partition", text)

    def stream(self, axis: str, level: str, size: int | None = None) -> Derivation:
        """Cut an axis into chunks read one after another: legal where an accumulator takes them in."""
        asked = f"stream {axis} in {level}"
        self._check(asked, axis, level, size)
        region = region_of(self.diagram, axis, asked)
        self._check_order(asked, axis)
        new = self._partition("stream", axis, level, size)
        ends = "; ".join(f"{b} accumulates by {accumulator(b).name}" for b in region.ends)
        done = self._with("accumulator", ends)
        if region.maps:
            maps = ", ".join(f"{b.operation.name} ({b.output})" for b in region.maps)
            done = done._with("fusion theorem", f"{maps} mapped over {axis}: composed with it they stay streamable")
        woven = sorted({n for b in region.ends for n in self.diagram.array(b.output).names})
        if woven:
            done = done._with("weaving theorem", f"mapped over {', '.join(woven)} it stays streamable")
        return replace(done, partitions=(*self.partitions, new))._with("stream partition", str(new))

    def partition_of(self, axis: str, level: str) -> Partition | None:
        """How an axis is cut at a level: there, or else at the nearest level above."""
        above = [p for p in self.partitions if p.axis == axis and LEVELS.index(p.level) <= LEVELS.index(level)]
        return max(above, key=lambda p: LEVELS.index(p.level), default=None)

    def _check_order(self, asked: str, axis: str) -> None:
        """A stream inside another may not end in an array that the outer one would have to hold whole."""
        for cut in self.partitions:
            if cut.kind != "stream" or cut.axis == axis:
                continue
            for box in region_of(self.diagram, cut.axis, asked).ends:
                if axis in self.diagram.array(box.output).names:
                    wrong = f"{box} is accumulated over {cut.axis} first, and so holds the whole of {axis}"
                    raise RelabelError(asked, wrong, f"stream {axis} before {cut.axis}")

    # ---- helpers -----------------------------------------------------------------------------------------------------
    def _with(self, rule: str, text: str) -> Derivation:
        return replace(self, steps=(*self.steps, Step(rule, text)))

    def _box(self, operation: str) -> Box:
        for box in self.diagram.boxes:
            if box.operation.name == operation:
                return box
        names = ", ".join(box.operation.name for box in self.diagram.boxes)
        raise RelabelError(f"fuse {operation}", f"{self.diagram.name} has no such operation", f"name one of {names}")

    def _readers(self, name: str) -> int:
        return sum(name in box.inputs for box in self.diagram.boxes) + (name in self.diagram.outputs)

    def _partition(self, kind: str, axis: str, level: str, size: int | None) -> Partition:
        symbol = f"{kind[0]}_{axis}"
        if any(p.symbol == symbol for p in self.partitions):
            symbol += f"_{level}"
        return Partition(kind, axis, level, symbol, size)

    def _check(self, asked: str, axis: str, level: str, size: int | None) -> None:
        check_level(asked, level)
        axes = self.diagram.axes
        if axis not in axes:
            raise RelabelError(asked, f"{self.diagram.name} has no axis {axis}", f"name one of {', '.join(axes)}")
        if any(p.axis == axis and p.level == level for p in self.partitions):
            raise RelabelError(asked, f"{axis} is cut in {level} already", "cut it at another level")
        outer = self.partition_of(axis, level)
        whole = axes[axis].size if outer is None else outer.size
        if size is not None:
            check_size(asked, axis, size, whole, axes[axis].divisor)

    def __str__(self) -> str:
        steps = [f"  {i}. {step}" for i, step in enumerate(self.steps, 1)]
        return "\n".join([str(self.diagram), *(f"  {p}" for p in self.partitions), *steps])


def check_size(asked: str, axis: str, size: int, whole: int | None, divisor: int) -> None:
    """Raise RelabelError unless pieces of `size` cut `whole` without a rest and are multiples of the divisor."""
    if size < 1 or (whole is not None and whole % size):
        raise RelabelError(asked, f"{size} does not divide the {whole} of axis {axis}", "pass a divisor")
    if size % divisor:
        raise RelabelError(asked, f"pieces of axis {axis} are multiples of {divisor}, {size} is not", "pass a multiple")


def flash_attention(diagram: Diagram, level: str = "shared", inner: str = "register") -> Derivation:
    """Naive attention relabelled into FlashAttention: queries and heads grouped, keys streamed."""
    done = Derivation(diagram).fuse("softmax")
    (end,) = [box for box in done.diagram.boxes if box.operation.name == "softmax-contract"]
    for array in done.diagram.arrays:
        if array.name not in (*done.diagram.inputs, *done.diagram.outputs):
            done = done.keep(array.name, inner)
    inputs = [done.diagram.array(name) for name in done.diagram.inputs]
    score = done.diagram.array(end.inputs[0])
    for axis in score.names:
        if axis in end.over:
            continue
        shared = all(axis in array.names for array in inputs)
        # a head that all inputs have is a problem of its own: nothing is read twice, whatever the size of a group
        done = done.group(axis, level, 1 if shared else None)
    for axis in end.over:
        done = done.stream(axis, level)
    return done
