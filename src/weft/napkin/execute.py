"""What a relabelled diagram computes, group by group and chunk by chunk, in float64.

Where a group reads keys through a relation, it gets only the keys of its span: the run proves that no more are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from math import lcm
from typing import Any

import numpy as np

from weft.errors import RelabelError
from weft.napkin.diagram import Array, Diagram, Reading, aligned, checked, compute, placed
from weft.napkin.operations import Reals
from weft.napkin.relabel import Derivation, Partition, check_size
from weft.napkin.schedule import Loop, Program, accumulator, program
from weft.pattern.bounds import Ints

Values = dict[str, Reals]
Positions = Mapping[str, Ints]


def run(derivation: Derivation, values: Mapping[str, Any], sizes: Mapping[str, int] | None = None) -> Values:
    """The outputs by name. sizes: a number for every partition whose size is open, by its symbol."""
    sizes = sizes or {}
    known = checked(derivation.diagram, values)
    lengths = _lengths(derivation.diagram, known)
    cuts = [(p, _size(derivation, p, sizes, lengths)) for p in derivation.partitions]
    chunks = {p.axis: size for p, size in cuts if p.kind == "stream"}  # of several levels the innermost counts
    groups = [(p.axis, size) for p, size in cuts if p.kind == "group"]
    at = {axis: np.arange(length, dtype=np.int64) for axis, length in lengths.items()}
    nodes = program(derivation.diagram, derivation.diagram.boxes, tuple(chunks))

    def inner(known: Values, at: Positions) -> Values:
        done = _interpreted(derivation.diagram, nodes, known, at, chunks)
        return {name: done[name] for name in derivation.diagram.outputs}

    return _grouped(derivation.diagram, known, at, groups, inner)


def _lengths(diagram: Diagram, known: Values) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, value in known.items():
        found |= dict(zip(diagram.array(name).names, value.shape, strict=True))
    return found


def _size(derivation: Derivation, cut: Partition, sizes: Mapping[str, int], lengths: Mapping[str, int]) -> int:
    size = cut.size if cut.size is not None else sizes.get(cut.symbol)
    if size is None:
        raise RelabelError(f"run {cut}", f"{cut.symbol} is open", f"pass sizes with {cut.symbol}")
    step = row_step([r for r in derivation.diagram.readings if r.rows == cut.axis])
    read = any(r.keys == cut.axis for r in derivation.diagram.readings)  # a span, not the axis, is then cut
    whole = None if read or step > 1 else lengths[cut.axis]
    check_size(f"run {cut}", cut.axis, size, whole, derivation.diagram.axes[cut.axis].divisor)
    return size


def row_step(readings: Sequence[Reading]) -> int:
    """Rows of one group share their residue by this step, so that their keys are one residue class."""
    return lcm(1, *(lcm(r.relation.rows.step, r.relation.diagonal.step) for r in readings))


# ---- groups ----------------------------------------------------------------------------------------------------------
def _grouped(diagram: Diagram, known: Values, at: Positions, groups: list[tuple[str, int]],
             inner: Callable[[Values, Positions], Values]) -> Values:  # fmt: skip
    """`inner` on every group; the first of `groups` is the outermost."""
    if not groups:
        return inner(known, at)
    (axis, size), *rest = groups
    readings = [r for r in diagram.readings if r.rows == axis]
    out: Values = {}
    for rows in _pieces(at[axis], row_step(readings), size):
        chosen = {axis: rows} | {r.keys: _keys(r, at[axis][rows], at[r.keys]) for r in readings}
        part = _taken(diagram, known, chosen)
        here = dict(at) | {name: at[name][index] for name, index in chosen.items()}
        for name, value in _grouped(diagram, part, here, rest, inner).items():
            _put(out, diagram.array(name), value, axis, rows, at[axis].size)
    return out


def _pieces(positions: Ints, step: int, size: int) -> Iterator[Ints]:
    """Indices of groups of `size` positions; all positions of a group have one residue by `step`."""
    for residue in np.unique(positions % step):
        lane = np.flatnonzero(positions % step == residue)
        for i in range(0, lane.size, size):
            yield lane[i : i + size]


def _keys(reading: Reading, rows: Ints, keys: Ints) -> Ints:
    """Indices into `keys` of the span of some rows of one residue class."""
    n = int(keys.max(initial=-1)) + 1
    lo, hi = reading.relation.interval(rows, n)
    step, phase, _ = reading.relation.key_classes(rows[:1])
    return np.flatnonzero((keys >= lo[0]) & (keys < hi[-1]) & (keys % step == phase[0]))


def _taken(diagram: Diagram, known: Values, chosen: Positions) -> Values:
    """The arrays with only the chosen indices of some axes."""
    found = dict(known)
    for name in known:
        for place, axis in enumerate(diagram.array(name).names):
            if axis in chosen:
                found[name] = found[name].take(chosen[axis], axis=place)
    return found


def _put(out: Values, array: Array, value: Reals, axis: str, rows: Ints, length: int) -> None:
    """Write the rows of one group into the whole output."""
    place = array.names.index(axis)
    if array.name not in out:
        shape = list(value.shape)
        shape[place] = length
        out[array.name] = np.zeros(shape)
    np.moveaxis(out[array.name], place, 0)[rows] = np.moveaxis(value, place, 0)


# ---- streams ---------------------------------------------------------------------------------------------------------
def _interpreted(diagram: Diagram, nodes: Program, known: Values, at: Positions, chunks: Mapping[str, int]) -> Values:
    """The arrays after the nodes of a program."""
    known = dict(known)
    for node in nodes:
        if isinstance(node, Loop):
            known |= _looped(diagram, node, known, at, chunks)
        else:
            known[node.output] = compute(diagram, node, known, at)
    return known


def _looped(diagram: Diagram, loop: Loop, known: Values, at: Positions, chunks: Mapping[str, int]) -> Values:
    """What the accumulators of a loop end with."""
    states: dict[str, Any] = dict.fromkeys(box.output for box in loop.ends)
    for chosen in _chunks(loop.axes, at, chunks):
        inner = dict(at) | {name: at[name][index] for name, index in chosen.items()}
        part = _interpreted(diagram, loop.body, _taken(diagram, known, chosen), inner, chunks)
        for box in loop.ends:
            state, arrays = states[box.output], aligned(diagram, box, part)
            states[box.output] = accumulator(box).step(state, *arrays)
    return {box.output: placed(diagram, box, accumulator(box).finish(states[box.output]), known) for box in loop.ends}


def _chunks(axes: Sequence[str], at: Positions, sizes: Mapping[str, int]) -> Iterator[dict[str, Ints]]:
    """Every chunk of the streamed axes together, as indices; one empty chunk where there is nothing to read."""
    cuts = [
        [np.arange(i, min(i + sizes[axis], at[axis].size)) for i in range(0, max(1, at[axis].size), sizes[axis])]
        for axis in axes
    ]
    for chunk in product(*cuts):
        yield dict(zip(axes, chunk, strict=True))
