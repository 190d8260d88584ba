"""The loops of a partitioned diagram, as text."""

from __future__ import annotations

from weft.napkin.diagram import LEVELS, Array
from weft.napkin.relabel import Derivation, Partition
from weft.napkin.schedule import Loop, Program, accumulator, loops, program

INDENT = "    "


def pseudocode(derivation: Derivation) -> str:
    """Groups in parallel, loops over chunks in order, and what is read and written where."""
    diagram = derivation.diagram
    groups = [p for p in derivation.partitions if p.kind == "group"]
    streams = tuple(dict.fromkeys(p.axis for p in derivation.partitions if p.kind == "stream"))
    nodes = program(diagram, diagram.boxes, streams)
    lines, depth = [], 0
    for level in dict.fromkeys(p.level for p in groups):
        cuts = " and ".join(f"{_pieces(p)} of {p.axis}" for p in groups if p.level == level)
        lines.append(INDENT * depth + f"in parallel, for each {level} group: {cuts}")
        depth += 1
    spans = [f"only the keys {r.keys} that {r.rows} can see: span({r.keys})" for r in diagram.readings]
    lines += [INDENT * depth + text for text in spans]
    lines += _reads(derivation, depth, set(), set(streams))
    lines += _nodes(derivation, nodes, depth)
    lines += [INDENT * depth + f"write {_sized(derivation, diagram.array(name))}" for name in diagram.outputs]
    return "\n".join(lines)


def _pieces(cut: Partition) -> str:
    return cut.symbol if cut.size is None else str(cut.size)


def _sized(derivation: Derivation, array: Array) -> str:
    """An array with the sizes of its pieces at the innermost level that cuts them."""
    sizes = []
    for axis in array.axes:
        cut = derivation.partition_of(axis.name, LEVELS[-1])
        sizes.append(axis.name if cut is None else _pieces(cut))
    return f"{array.name}[{', '.join(sizes)}]"


def _reads(derivation: Derivation, depth: int, here: set[str], deeper: set[str]) -> list[str]:
    """The inputs that the loop over the axes `here` reads: they have one of them (if any), and none of `deeper`."""
    arrays = [derivation.diagram.array(name) for name in derivation.diagram.inputs]
    mine = [a for a in arrays if not deeper & set(a.names) and (not here or here & set(a.names))]
    return [INDENT * depth + f"read {_sized(derivation, array)}" for array in mine]


def _nodes(derivation: Derivation, nodes: Program, depth: int) -> list[str]:
    lines = []
    for node in nodes:
        if not isinstance(node, Loop):
            lines.append(INDENT * depth + f"{node}  # {_sized(derivation, derivation.diagram.array(node.output))}")
            continue
        chunks = " and ".join(_chunks(derivation, axis) for axis in node.axes)
        lines.append(INDENT * depth + f"for each chunk: {chunks}")
        deeper = {axis for loop in loops(node.body) for axis in loop.axes}
        lines += _reads(derivation, depth + 1, set(node.axes), deeper)
        lines += _nodes(derivation, node.body, depth + 1)
        for box in node.ends:
            taken = f"{box.output} takes in {', '.join(box.inputs)} by {accumulator(box).name}"
            lines.append(INDENT * (depth + 1) + taken)
    return lines


def _chunks(derivation: Derivation, axis: str) -> str:
    cuts = [p for p in derivation.partitions if p.kind == "stream" and p.axis == axis]
    return ", in steps of ".join(_pieces(p) for p in cuts) + f" of {axis}"
