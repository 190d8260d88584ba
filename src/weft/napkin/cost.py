"""What a relabelled diagram transfers and holds, as formulas of its axes and of the sizes of its pieces.

`transfers` is H, the bytes that enter or leave a level; `memory` is M, the most that one group holds there. Both are
sympy expressions in positive symbols: an axis by its name, a piece by the symbol of its partition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import product as cartesian
from math import prod
from typing import Any, TypeAlias

import sympy as sp  # type: ignore[import-untyped,unused-ignore]

from weft.errors import RelabelError
from weft.napkin.diagram import LEVELS, Array, Axis, Box, Reading
from weft.napkin.emit import compiled
from weft.napkin.relabel import Derivation, Partition
from weft.napkin.schedule import accumulator
from weft.napkin.span import endless

Expr: TypeAlias = Any


def symbol(name: str) -> Expr:
    """A positive quantity."""
    return sp.Symbol(name, positive=True)


def length(axis: Axis) -> Expr:
    """The length of an axis as a symbol, whether it has a size or not: formulas outlive sizes."""
    return symbol(axis.name)


def piece(cut: Partition) -> Expr:
    """The size of a piece: its symbol, or its number once it is fixed."""
    return symbol(cut.symbol) if cut.size is None else sp.Integer(cut.size)


def element_bytes(array: Array) -> Expr:
    """Bytes of one element: a number, or a symbol where the dtype is open."""
    nbytes = array.dtype.nbytes
    if isinstance(nbytes, str):
        return symbol(nbytes)
    return sp.Rational(nbytes.numerator, nbytes.denominator) if isinstance(nbytes, Fraction) else sp.Integer(nbytes)


# ---- sparse axes -----------------------------------------------------------------------------------------------------
def span(reading: Reading, rows: Expr) -> Expr:
    """Keys that a group of `rows` queries of one lane reads away from the ends of the axis, in the leading form.

    A window of w keys: rows + w - 1; moved in steps of st: rows + w - st, for groups of whole steps. Open to one side
    (causal): (x + rows) / 2 in the mean over the axis. Exact sums with borders: `weft.napkin.span.Span`.
    """
    lower, upper, apart = endless(reading.relation)
    keys = symbol(reading.keys) / apart
    growth = [sp.Integer(0) if b.is_constant else sp.Rational(b.rise, b.run) for b in (lower, upper)]
    if growth == [0, 0]:
        return keys
    if lower.is_constant or upper.is_constant:
        return (keys + rows * max(growth)) / 2
    if growth[0] != growth[1]:
        raise RelabelError(f"the span of {reading.keys}", "its ends move at different rates", "use Span(...).mean(g)")
    last = upper.rise * ((upper.shift - 1) // upper.run) + upper.base
    first = lower.rise * (lower.shift // lower.run) + lower.base
    return rows * growth[0] + sp.Integer(last - first)


def sparse_lengths(derivation: Derivation, level: str) -> dict[str, Expr]:
    """For every axis of keys that is read through a grouped axis of queries: its span."""
    found: dict[str, Expr] = {}
    for reading in derivation.diagram.readings:
        cut = derivation.partition_of(reading.rows, level)
        if cut is not None and cut.kind == "group":
            found[reading.keys] = span(reading, piece(cut))
    return found


# ---- transfers -------------------------------------------------------------------------------------------------------
def transfers(derivation: Derivation, level: str) -> Expr:
    """H: bytes sent to and from a level for the whole diagram.

    An input is sent again to every group of an axis that it lacks, and for every chunk of a stream around its own.
    Arrays kept above the level are written once and read by each of their readers.
    """
    diagram = derivation.diagram
    spans = sparse_lengths(derivation, level)
    total = sum((_sent(derivation, diagram.array(name), level, spans) for name in diagram.inputs), sp.Integer(0))
    inner = LEVELS.index(level)
    for array in diagram.arrays:
        if array.name in diagram.inputs:
            continue
        readers = sum(array.name in box.inputs for box in diagram.boxes)
        above = LEVELS.index(array.level) < inner
        if array.name in diagram.outputs:
            total += _whole(array) * (1 + (readers if above else 0))
        elif above:
            total += _whole(array) * (1 + readers)
    return sp.expand(total)


def _whole(array: Array) -> Expr:
    return element_bytes(array) * sp.prod([length(axis) for axis in array.axes])


def _sent(derivation: Derivation, array: Array, level: str, spans: Mapping[str, Expr]) -> Expr:
    size = element_bytes(array) * _again(derivation, level, set(array.names))
    for axis in array.axes:
        size *= spans.get(axis.name, length(axis))
    for name, axis in derivation.diagram.axes.items():
        cut = derivation.partition_of(name, level)
        if cut is not None and name not in array.names and _around(derivation, cut, array, level):
            size *= spans.get(name, length(axis)) / piece(cut)
    return size


def _around(derivation: Derivation, cut: Partition, array: Array, level: str) -> bool:
    """Whether a stream is the outer loop of another one that this array is read in."""
    if cut.kind != "stream":
        return False
    order = list(derivation.partitions)
    later = [p for p in order[order.index(cut) + 1 :] if p.kind == "stream" and p.axis in array.names]
    return any(derivation.partition_of(p.axis, level) == p for p in later)


def work(derivation: Derivation, level: str) -> Expr:
    """Floating-point operations; under a reading those on the spans of groups at a level, live pairs or not.

    What lacks a grouped axis is computed again in every group of it.
    """
    diagram, spans, total = derivation.diagram, sparse_lengths(derivation, level), sp.Integer(0)
    for box in diagram.boxes:
        first, *others = (diagram.array(name).axes for name in box.inputs)
        more = {axis for axes in others for axis in axes} - set(first)
        points, beside = (sp.prod([spans.get(axis.name, length(axis)) for axis in axes]) for axes in (first, more))
        again = _again(derivation, level, {axis.name for axis in (*first, *more)})
        total += again * points * (box.operation.flops * beside + box.operation.pointwise)
    return sp.expand(total)


def _again(derivation: Derivation, level: str, names: set[str]) -> Expr:
    """Groups of the axes that are not among `names`."""
    times = sp.Integer(1)
    for name, axis in derivation.diagram.axes.items():
        cut = derivation.partition_of(name, level)
        if cut is not None and cut.kind == "group" and name not in names:
            times *= length(axis) / piece(cut)
    return times


# ---- memory ----------------------------------------------------------------------------------------------------------
def memory(derivation: Derivation, level: str) -> Expr:
    """M: the most bytes that one group holds at a level, over the columns of the diagram."""
    found = _undominated(columns(derivation, level))
    return found[0] if len(found) == 1 else sp.Max(*found)


def columns(derivation: Derivation, level: str) -> list[Expr]:
    """Bytes held in each column (one for each box). Where an axis is cut: inputs and outputs all along, as their next
    chunk is on its way. Where what is computed in between is kept, while it is needed (an operation on single elements
    works in place). The accumulators that take it in are kept too, with their scalars.
    """
    diagram, boxes = derivation.diagram, derivation.diagram.boxes
    ends = (*diagram.inputs, *diagram.outputs) if _is_cut(derivation, level) else ()
    always = {name: _held(derivation, diagram.array(name), level) for name in ends}
    scalars = sp.Integer(0)
    for box in boxes:
        if box.operation.accumulator is not None and diagram.array(box.inputs[0]).level == level:
            always[box.output] = _held(derivation, diagram.array(box.output), level)
            scalars += _scalars(derivation, box, level)
    found = []
    for i, box in enumerate(boxes):
        later = boxes[i if box.over else i + 1 :]
        alive = ({n for b in later for n in b.inputs} & {b.output for b in boxes[:i]}) | {box.output}
        inner = [diagram.array(n) for n in sorted(alive - set(always))]
        held = [_held(derivation, array, level) for array in inner if array.level == level]
        found.append(sp.expand(sp.Add(scalars, *always.values(), *held)))
    return found


def _is_cut(derivation: Derivation, level: str) -> bool:
    """Whether inputs and outputs are held at the level: an axis is cut there, or no axis is cut anywhere."""
    return level in {p.level for p in derivation.partitions} or not derivation.partitions


def _extent(derivation: Derivation, axis: Axis, level: str) -> Expr:
    cut = derivation.partition_of(axis.name, level)
    return length(axis) if cut is None else piece(cut)


def _held(derivation: Derivation, array: Array, level: str) -> Expr:
    return element_bytes(array) * sp.prod([_extent(derivation, axis, level) for axis in array.axes])


def _scalars(derivation: Derivation, box: Box, level: str) -> Expr:
    """The numbers that an accumulator keeps for each row of its first input."""
    array, count = derivation.diagram.array(box.inputs[0]), accumulator(box).scalars
    rows = [_extent(derivation, axis, level) for axis in array.axes if axis.name not in box.over]
    return count * element_bytes(array) * sp.prod(rows)


def _undominated(found: list[Expr]) -> list[Expr]:
    """Without the columns that another one always holds at least as much as."""
    kept: list[Expr] = []
    for new in found:
        if any((old - new).is_nonnegative for old in kept):
            continue
        kept = [old for old in kept if not (new - old).is_nonnegative] + [new]
    return kept


def evaluate(formula: Expr, values: Mapping[str, float]) -> float:
    """The number that a formula is at these sizes."""
    return float(formula.subs({symbol(name): value for name, value in values.items()}))


# ---- optimum ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Optimum:
    """The least H under M <= limit, with streamed axes in thin slices: a lower bound, and the sizes that reach it."""

    transfers: Expr
    sizes: dict[Expr, Expr]


def optimum(derivation: Derivation, level: str, limit: Expr = None) -> Optimum:
    """The optimum in closed form, by Lagrange's rule; `limit` is the symbol M unless given (bytes)."""
    limit = symbol("M") if limit is None else limit
    cuts = [p for p in derivation.partitions if p.size is None and derivation.partition_of(p.axis, level) == p]
    thin = {piece(p): 0 for p in cuts if p.kind == "stream"}
    h, m = transfers(derivation, level), memory(derivation, level).subs(thin)
    if h.free_symbols & set(thin):
        raise RelabelError(f"the optimum in {level}", "H depends on the size of a chunk", "use best_sizes")
    free = [piece(p) for p in cuts if p.kind == "group" and piece(p) in h.free_symbols]
    if len(free) > 2:  # no radicals in general, and solving would take minutes to find that out
        wrong = f"{', '.join(map(str, free))} are too many for a closed form"
        raise RelabelError(f"the optimum in {level}", wrong, "use best_sizes")
    weight = symbol("lagrange")
    equations = [sp.diff(h, g) + weight * sp.diff(m, g) for g in free] + [m - limit]
    for solution in sp.solve(equations, [*free, weight], dict=True):
        if all(solution[g].is_positive is not False for g in free):
            return Optimum(sp.expand(sp.simplify(h.subs(solution))), {g: sp.simplify(solution[g]) for g in free})
    raise RelabelError(f"the optimum in {level}", "its equations have no closed form", "use best_sizes")


@dataclass(frozen=True)
class Sizes:
    """Sizes of pieces by symbol, with the bytes that they transfer, and hold at each level."""

    sizes: dict[str, int]
    transfers: float
    memory: dict[str, float]


def best_sizes(
    derivation: Derivation, level: str, limits: Mapping[str, float], lengths: Mapping[str, int] | None = None
) -> Sizes:
    """The sizes with the least H at `level`. They divide their axes, obey the divisors and fit the bytes of every level
    in `limits`. lengths: of axes whose size is open. Of equals, the one with the longest chunks.
    """
    axes = derivation.diagram.axes
    known = {name: axis.size for name, axis in axes.items() if axis.size is not None} | dict(lengths or {})
    within = " and ".join(f"{limit:g} bytes in {at}" for at, limit in limits.items())
    asked = f"sizes of pieces of {derivation.diagram.name} within {within}"
    for name in axes:
        if name not in known:
            raise RelabelError(asked, f"axis {name} has no size", "pass lengths")
    cuts = [p for p in derivation.partitions if p.size is None and derivation.partition_of(p.axis, level) == p]
    spans = {f"span_{axis}": keys for axis, keys in sparse_lengths(derivation, level).items()}
    formulas = {"H": transfers(derivation, level)} | {at: memory(derivation, at) for at in limits} | spans
    streams = [p for p in cuts if p.kind == "stream"]
    costs = compiled(formulas, [*axes, *(p.symbol for p in cuts)])
    best: tuple[tuple[float, int], Sizes] | None = None
    for choice in cartesian(*(divisors(known[p.axis], axes[p.axis].divisor) for p in cuts)):
        sizes = {p.symbol: size for p, size in zip(cuts, choice, strict=True)}
        sent = costs["H"](**known, **sizes)
        if best is not None and sent > best[1].transfers:
            continue
        held = {at: costs[at](**known, **sizes) for at in limits}
        if any(held[at] > limit for at, limit in limits.items()):
            continue
        read = [p for p in streams if f"span_{p.axis}" in spans and sizes[p.symbol] > axes[p.axis].divisor]
        if any(sizes[p.symbol] > costs[f"span_{p.axis}"](**known, **sizes) for p in read):
            continue  # a chunk longer than what there is to read
        rank = sent, -prod(sizes[p.symbol] for p in streams)
        if best is None or rank < best[0]:
            best = rank, Sizes(sizes, sent, held)
    if best is None:
        for axis in (axes[p.axis] for p in cuts):
            if axis.size is not None and axis.size % axis.divisor:
                wrong = f"axis {axis.name} has {axis.size}, no multiple of {axis.divisor}, of which its pieces are"
                raise RelabelError(asked, wrong, f"pass a length that is a multiple of {axis.divisor}")
        least = {p.symbol: axes[p.axis].divisor for p in cuts}
        worst = max(limits, key=lambda at: costs[at](**known, **least) / limits[at])
        smallest = ", ".join(f"{p.axis} by {least[p.symbol]}" for p in cuts)
        wrong = f"even {smallest} hold {costs[worst](**known, **least):g} bytes in {worst}"
        raise RelabelError(asked, wrong, "cut another axis, or hold some array at another level")
    return best[1]


def divisors(size: int, multiple: int = 1) -> list[int]:
    """The divisors of `size` that are multiples of `multiple`, ascending."""
    return [d for d in range(multiple, size + 1, multiple) if size % d == 0]
