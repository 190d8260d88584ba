"""Diagrams: arrays joined by boxes, every one of them with a meaning in float64.

An axis is one wire, told by its name. A box works on the axes `over`; all other axes of its arrays are woven. The
operation is mapped over them, and an input that lacks one is broadcast along it. Values are immutable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod
from typing import Any

import numpy as np

from weft.errors import RelabelError
from weft.napkin.operations import Operation, Reals
from weft.outside import is_name, shown
from weft.pattern.bounds import Ints
from weft.pattern.relation import Relation

# From far to near; a partition at a level says how much of an array that level holds at a time.
LEVELS = ("network", "global", "cluster", "shared", "register", "tensor")


@dataclass(frozen=True)
class Dtype:
    """A name and the bytes of one element; a string is a symbol, for formulas that leave it open."""

    name: str
    nbytes: int | Fraction | str

    def __post_init__(self) -> None:
        if isinstance(self.nbytes, str):
            check_name("bytes of a dtype", self.nbytes)


def check_name(what: str, name: object) -> None:
    """Raise RelabelError for a name that cannot stand in a formula's source."""
    if not is_name(name):
        raise RelabelError(
            f"{what} named {shown(repr(name), 80)}", "formulas become Python, where it is no name",
            "use letters of ASCII, digits and underscores, and no word of Python",
        )  # fmt: skip


ELEMENT = Dtype("element", 1)
FP32, FP16, FP8, FP4 = Dtype("fp32", 4), Dtype("fp16", 2), Dtype("fp8", 1), Dtype("fp4", Fraction(1, 2))


@dataclass(frozen=True)
class Axis:
    """A wire: its name, its size (None: left open), and a number that every piece of it is a multiple of."""

    name: str
    size: int | None = None
    divisor: int = 1

    def __post_init__(self) -> None:
        check_name("an axis", self.name)

    def __str__(self) -> str:
        return self.name if self.size is None else f"{self.name}={self.size}"


@dataclass(frozen=True)
class Array:
    """A stack of wires with a dtype, held at a level."""

    name: str
    axes: tuple[Axis, ...]
    dtype: Dtype = ELEMENT
    level: str = "global"

    def __post_init__(self) -> None:
        check_name("an array", self.name)
        check_level(f"array {self.name}", self.level)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(axis.name for axis in self.axes)

    def __str__(self) -> str:
        return f"{self.name}[{', '.join(map(str, self.axes))}] {self.dtype.name} in {self.level}"


@dataclass(frozen=True)
class Reading:
    """An axis of keys read through one axis of an affine term: row i sees the keys that `relation` relates to it."""

    rows: str
    keys: str
    relation: Relation


@dataclass(frozen=True)
class Box:
    """One operation on named arrays; a mask has a reading for each axis of its grid."""

    operation: Operation
    inputs: tuple[str, ...]
    output: str
    over: tuple[str, ...] = ()
    readings: tuple[Reading, ...] = ()

    def __str__(self) -> str:
        over = f"[{', '.join(self.over)}]" if self.over else ""
        by = "".join(f" {reading.keys} by {reading.rows}" for reading in self.readings)
        return f"{self.output} = {self.operation.name}{over}({', '.join(self.inputs)}){by}"

    def renamed(self, names: Mapping[str, str]) -> Box:
        return replace(
            self, inputs=tuple(names.get(x, x) for x in self.inputs), output=names.get(self.output, self.output)
        )


@dataclass(frozen=True)
class Diagram:
    """Boxes in an order in which they can be computed; `inputs` and `outputs` name arrays."""

    name: str
    arrays: tuple[Array, ...]
    boxes: tuple[Box, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def __post_init__(self) -> None:
        known = set(self.inputs)
        for box in self.boxes:
            missing = [name for name in box.inputs if name not in known]
            if missing:
                raise RelabelError(f"{self.name}: {box}", f"{missing[0]} is not computed before", "reorder the boxes")
            self._check(box)
            known.add(box.output)
        for name in self.outputs:
            if name not in known:
                raise RelabelError(f"{self.name}", f"output {name} is not computed", "name the output of a box")
        self.axes  # noqa: B018 - an axis of two sizes is refused

    def _check(self, box: Box) -> None:
        """The output has exactly the axes of the inputs, less those reduced; all inputs have the axes worked on."""
        asked = f"{self.name}: {box}"
        ins = [self.array(name).names for name in box.inputs]
        if len(ins) != box.operation.arity:
            raise RelabelError(asked, f"{box.operation.name} takes {box.operation.arity} arrays", "pass as many")
        for name, axes in zip(box.inputs, ins, strict=True):
            if not set(box.over) <= set(axes):
                raise RelabelError(asked, f"{name} lacks an axis of {box.over}", "weave that input over it first")
        want = {axis for axes in ins for axis in axes} - (set(box.over) if box.operation.reduces else set())
        if want != set(self.array(box.output).names):
            raise RelabelError(asked, f"the output must have the axes {sorted(want)}", "weave or reduce to these")

    # ---- looking things up -------------------------------------------------------------------------------------------
    def array(self, name: str) -> Array:
        for array in self.arrays:
            if array.name == name:
                return array
        raise RelabelError(self.name, f"there is no array {name}", f"name one of {[a.name for a in self.arrays]}")

    @property
    def axes(self) -> dict[str, Axis]:
        """Every axis by its name."""
        found: dict[str, Axis] = {}
        for axis in (axis for array in self.arrays for axis in array.axes):
            if found.setdefault(axis.name, axis) != axis:
                raise RelabelError(self.name, f"axis {axis.name} is {axis} and {found[axis.name]}", "use two names")
        return found

    @property
    def readings(self) -> tuple[Reading, ...]:
        return tuple(reading for box in self.boxes for reading in box.readings)

    def touching(self, axis: str) -> list[Box]:
        """The boxes with an input that has the axis."""
        return [box for box in self.boxes if any(axis in self.array(name).names for name in box.inputs)]

    # ---- making larger ones ------------------------------------------------------------------------------------------
    def renamed(self, names: Mapping[str, str]) -> Diagram:
        """The same diagram with other names of arrays."""
        new = {array.name: names.get(array.name, array.name) for array in self.arrays}
        arrays = tuple(replace(array, name=new[array.name]) for array in self.arrays)
        boxes = tuple(box.renamed(new) for box in self.boxes)
        return Diagram(self.name, arrays, boxes, *(tuple(new[x] for x in side) for side in (self.inputs, self.outputs)))

    def apart(self, other: Diagram, joined: Iterable[str] = ()) -> Diagram:
        """`other` with its arrays renamed so that none but `joined` has the name of one of this diagram."""
        taken = {array.name for array in self.arrays} | {array.name for array in other.arrays}
        names: dict[str, str] = {}
        for array in other.arrays:
            if array.name in {a.name for a in self.arrays} and array.name not in joined:
                names[array.name] = next(n for i in range(2, 1 << 16) if (n := f"{array.name}{i}") not in taken)
                taken.add(names[array.name])
        return other.renamed(names)

    def __rshift__(self, other: Diagram) -> Diagram:
        """Composition: the outputs of this diagram are the first inputs of the other."""
        theirs = other.inputs[: len(self.outputs)]
        if len(theirs) < len(self.outputs):
            wrong = f"{len(self.outputs)} outputs meet {len(theirs)} inputs"
            raise RelabelError(f"{self.name} >> {other.name}", wrong, "put another diagram beside the second one")
        for mine, name in zip(self.outputs, theirs, strict=True):
            a, b = self.array(mine), other.array(name)
            if (a.axes, a.dtype) != (b.axes, b.dtype):
                raise RelabelError(f"{self.name} >> {other.name}", f"{a} does not fit {b}", "rename or cast one")
        moved = self.apart(other)
        names = dict(zip(moved.inputs, self.outputs, strict=False))
        moved = moved.renamed(names)
        new = tuple(array for array in moved.arrays if array.name not in self.outputs)
        inputs = self.inputs + moved.inputs[len(theirs) :]
        return Diagram(f"{self.name}, {other.name}", self.arrays + new, self.boxes + moved.boxes, inputs, moved.outputs)

    def __matmul__(self, other: Diagram) -> Diagram:
        """Parallel product: both, beside each other."""
        moved = self.apart(other)
        name = f"{self.name} beside {other.name}"
        sides = self.inputs + moved.inputs, self.outputs + moved.outputs
        return Diagram(name, self.arrays + moved.arrays, self.boxes + moved.boxes, *sides)

    def weave(self, axis: Axis, inputs: Iterable[str] | None = None) -> Diagram:
        """The diagram mapped over one more axis, which these inputs have (default: all); others are broadcast."""
        woven = set(self.inputs if inputs is None else inputs)
        for box in self.boxes:
            if woven & set(box.inputs):
                woven.add(box.output)
        arrays = tuple(replace(a, axes=(axis, *a.axes)) if a.name in woven else a for a in self.arrays)
        return replace(self, arrays=arrays)

    def keep(self, name: str, level: str) -> Diagram:
        """The diagram with one array at another level."""
        self.array(name)
        return replace(self, arrays=tuple(replace(a, level=level) if a.name == name else a for a in self.arrays))

    # ---- meaning -----------------------------------------------------------------------------------------------------
    def run(self, values: Mapping[str, Any]) -> dict[str, Reals]:
        """The outputs by name, in float64; `values` has every input, its axes in the order of the array."""
        known = checked(self, values)
        for box in self.boxes:
            known[box.output] = compute(self, box, known, {})
        return {name: known[name] for name in self.outputs}

    def __str__(self) -> str:
        lines = [f"{self.name}: {', '.join(self.inputs)} -> {', '.join(self.outputs)}"]
        lines += [f"  {self.array(name)}" for name in self.inputs]
        width = max((len(str(box)) for box in self.boxes), default=0)
        for box in self.boxes:
            woven = [name for name in self.array(box.output).names if name not in box.over]
            lines.append(f"  {box!s:{width}}  {self.array(box.output)}, woven over {', '.join(woven) or 'nothing'}")
        return "\n".join(lines)


def check_level(asked: str, level: str) -> None:
    """Raise RelabelError unless the level is one of LEVELS."""
    if level not in LEVELS:
        raise RelabelError(asked, f"there is no level {level!r}", f"name one of {', '.join(LEVELS)}")


def checked(diagram: Diagram, values: Mapping[str, Any]) -> dict[str, Reals]:
    """The inputs as float64, once their shapes agree with each other and with the axes."""
    sizes = {name: axis.size for name, axis in diagram.axes.items()}
    found: dict[str, Reals] = {}
    for name in diagram.inputs:
        if name not in values:
            raise RelabelError(f"run {diagram.name}", f"input {name} is missing", f"pass {diagram.array(name)}")
        array, value = diagram.array(name), np.asarray(values[name], np.float64)
        if value.ndim != len(array.axes):
            raise RelabelError(f"run {diagram.name}", f"{name} has {value.ndim} axes", f"pass {array}")
        for axis, size in zip(array.names, value.shape, strict=True):
            if sizes[axis] not in (None, size):
                raise RelabelError(
                    f"run {diagram.name}", f"axis {axis} of {name} has {size} instead of {sizes[axis]}", "pass as many"
                )
            sizes[axis] = size
        found[name] = value
    return found


def compute(diagram: Diagram, box: Box, known: Mapping[str, Reals], at: Mapping[str, Ints]) -> Reals:
    """What one box gives; `at` has the positions of axes of which only a part is there."""
    value = box.operation.meaning(*aligned(diagram, box, known), *_live(diagram, box, known, at))
    return placed(diagram, box, value, known)


def woven_axes(diagram: Diagram, box: Box) -> list[str]:
    """The axes of the output that the box is mapped over, in the output's order."""
    return [name for name in diagram.array(box.output).names if name not in box.over]


def aligned(diagram: Diagram, box: Box, known: Mapping[str, Reals]) -> list[Reals]:
    """The inputs with woven axes in front (1 where an input lacks one) and the axes worked on flattened last."""
    order, found = woven_axes(diagram, box), []
    for name in box.inputs:
        names, value = diagram.array(name).names, known[name]
        have = [axis for axis in order if axis in names]
        value = value.transpose([names.index(axis) for axis in (*have, *box.over)])
        sizes = dict(zip(have, value.shape, strict=False))
        last = [prod(value.shape[len(have) :])] if box.over else []
        found.append(value.reshape([sizes.get(axis, 1) for axis in order] + last))
    return found


def placed(diagram: Diagram, box: Box, value: Reals, known: Mapping[str, Reals]) -> Reals:
    """A result with its axes in the order of the output array."""
    if box.operation.reduces or not box.over:
        return value
    names = diagram.array(box.inputs[0]).names
    kept = [known[box.inputs[0]].shape[names.index(axis)] for axis in box.over]
    value = value.reshape(value.shape[:-1] + tuple(kept))
    have = [*woven_axes(diagram, box), *box.over]
    return value.transpose([have.index(axis) for axis in diagram.array(box.output).names])


def _live(diagram: Diagram, box: Box, known: Mapping[str, Reals], at: Mapping[str, Ints]) -> list[Reals]:
    """For a mask: which pairs are live, with the axes of the output."""
    if not box.readings:
        return []
    names = diagram.array(box.output).names
    shape = dict(zip(diagram.array(box.inputs[0]).names, known[box.inputs[0]].shape, strict=True))
    live: Any = np.ones(1, np.bool_)
    for reading in box.readings:
        sides = []
        for axis in (reading.rows, reading.keys):
            position = at.get(axis, np.arange(shape[axis], dtype=np.int64))
            sides.append(position.reshape([-1 if name == axis else 1 for name in names]))
        live = live & reading.relation.contains(*sides)
    return [live]
