"""A plan as text: what is walked by which tiles, with digests in place of tables. The same plan has the same text."""

from hashlib import sha256

import numpy as np

from .adapter import HEX


def plan_lines(trace):
    """Lines of a plan and its launches, without names of classes or fields; what is usual is left out."""
    lines = [] if trace.plan is None else _attention(trace.plan)
    for phase, launched in trace.phases.items():
        for i, one in enumerate(launched):
            grid, tables = "x".join(map(str, one.grid)), ", ".join(one.tables) or "none"
            lines.append(f"launch {phase}.{i}: {grid} programs, tables {tables}")
    return lines


def _attention(plan):
    lines = [str(plan.problem)]
    directions = {"forward": plan.forward, "dq": plan.queries, "dkdv": plan.transposed, "in one": plan.in_one}
    for direction, shares in directions.items():
        if direction == "dq" and shares is plan.forward:
            lines.append("dq: as forward")
            continue
        lines += [line for i, share in enumerate(shares or ()) for line in _share(f"{direction} share {i}", share)]
    if plan.by_rows is not None:
        lines.append(f"by rows: {_row_shape(plan.by_rows.shape)}")
    if plan.fused_backward is not None:
        lines.append(f"one walk: {_walk(plan.fused_backward)}")
    return lines


def _share(name, share):
    plan = share.plan
    heads = "; ".join(f"batch {_span(h.batch)} kv {_span(h.kv)} group {_span(h.group)}" for h in share.heads)
    where = f" of ({share.batch}, {share.head})" * any((share.batch, share.head))
    where += f", pack {share.pack}" * bool(share.pack)
    yield f"{name}{where}: {heads}; tiles {_tiling(plan.tiling)}"
    for i, nest in enumerate(plan.nests):
        yield f"  launch {i}: queries {_grid(nest.q)}, boxes {_sizes(nest.box)}"
        for part in nest.parts:
            left_out = part.rows.left_out, part.keys.left_out
            out = f"; left out {_digest(*left_out)}" if any(one.size for one in left_out) else ""
            keys = f", keys {_grid(part.k)}" if part.k != nest.q else ""
            yield f"    term {part.term}{keys}: {', '.join(map(_axis, part.axes))}{out}"
    if plan.blocks is not None:
        found = _digest(plan.blocks.rows, plan.blocks.first)
        yield f"  blocks: {plan.blocks.tiles} tiles {_tiling(plan.of_blocks)}, {found}"


def _axis(axis):
    lanes = axis.lanes
    tables = axis.start, axis.stop, axis.left, axis.full
    keys = None if lanes.keys is None else lanes.keys.tokens
    of_lanes = lanes.q_first, lanes.rows, lanes.k_first, lanes.live, *lanes.out, lanes.queries, keys
    steps = f" steps {lanes.q_step}:{lanes.k_step}" * (lanes.q_step != 1 or lanes.k_step != 1)
    return f"{axis.block_q}x{axis.block_k} of {axis.n}{steps} lanes {_digest(*of_lanes)} tiles {_digest(*tables)}"


def _walk(walk):
    window = walk.window
    beside = [f"term {at} {few.base}+{few.step} {_digest(few.low, few.high)}" for at, few in walk.beside]
    return "; ".join([f"{window.length} tokens -{window.left} +{window.right}, term {walk.term}", *beside])


def _row_shape(shape):
    dealt = f"{shape.heads} heads, {shape.span} tokens, {shape.programs} programs, {shape.splits} splits"
    return f"{_tiling(shape.tiling)}; {dealt}"


def _tiling(tiling):
    if tiling is None:
        return "none"
    told = f"{tiling.rows}x{tiling.cols} {tiling.warps} warps {tiling.stages} stages"
    more = f" {tiling.registers} registers" * bool(tiling.registers) + f" {tiling.groups} groups" * bool(tiling.groups)
    return told + more + " apart" * tiling.apart


def _grid(grid):
    return _sizes(grid.shape) + f" from {grid.origin}" * bool(grid.origin)


def _sizes(sizes):
    return "x".join(map(str, sizes))


def _span(span):
    return f"{span[0]}-{span[1]}"


def _digest(*tables):
    """Of the values and shapes of tables, whatever their integers' width; None has a digest too."""
    found = sha256()
    for table in tables:
        values = np.zeros(0) if table is None else np.ascontiguousarray(table, np.int64)
        found.update(repr((table is None, values.shape)).encode() + values.tobytes())
    return found.hexdigest()[:HEX]
