"""Proof that a plan computes its pattern: every live pair once, no other, and no mask left out where one is needed.

`verify_plan` compares the plan with its Acsr exactly, row by row on each axis: time grows with axis lengths times terms
squared, memory is bounded. `verify_pattern` compares the Acsr with the pattern's predicate, at every tile edge too
(`weft.acsr.proof`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from weft.acsr import proof
from weft.acsr.format import Grid, Term
from weft.acsr.proof import joined, require, thinned, verify_disjoint, verify_remainder
from weft.acsr.relayout import Lanes
from weft.pattern.algebra import Pattern
from weft.pattern.bounds import Ints, IntTable
from weft.pattern.listed import EVERY, Listed
from weft.pattern.relation import NDBool
from weft.planning.heads import Share, served
from weft.planning.problem import Problem
from weft.planning.tiles import AxisPlan, LoopNest, Part, TilePlan

ROWS = 1 << 17  # rows of an axis looked at together


def verify_plan(plan: TilePlan) -> None:
    """Raise VerificationError unless the plan covers its Acsr exactly."""
    acsr = plan.acsr
    parts = [(nest, part) for nest in plan.nests for part in nest.parts]
    owners = sorted(part.term for _, part in parts)
    require(owners == list(range(len(acsr.terms))), f"terms {owners} are planned, there are {len(acsr.terms)}")
    require(all(nest.parts for nest in plan.nests), "a nest serves no term")
    for nest, part in parts:
        _part(nest, part, acsr.terms[part.term])
    for i, term in enumerate(acsr.terms):
        for grid, length in ((term.q, acsr.m), (term.k, acsr.n)):
            require(grid.lies_within(length), f"term {i} reaches beyond {acsr.m} x {acsr.n}")
    _blocks(plan)
    verify_disjoint(acsr)


def verify_heads(forward: Sequence[Share], transposed: Sequence[Share], problem: Problem) -> None:
    """Raise VerificationError unless every head is served once, and by the transposed plan of the same rows."""
    count = np.zeros((problem.batch, problem.q_heads), np.int64)
    for share in forward:
        for b, h in served(share.heads, problem.group):
            count[b, h] += 1
    unserved, often = int((count == 0).sum()), int((count > 1).sum())
    require(not unserved and not often, f"{unserved} heads are served by no plan, {often} by several")
    turned = [(share.plan.acsr.transpose(), share.heads) for share in forward]
    same = turned == [(share.plan.acsr, share.heads) for share in transposed]
    require(same, "a transposed plan is of other rows than the forward plan")


# ---- one part ----------------------------------------------------------------------------------------------------
def _part(nest: LoopNest, part: Part, term: Term) -> None:
    name = f"term {part.term}"
    require((nest.q, part.k) == (term.q, term.k), f"{name} is planned on another grid")
    left_out = tuple(x if not x.kept else EVERY for x in (term.rows, term.keys))
    require((part.rows, part.keys) == left_out, f"{name} is planned with other tokens left out")
    require(len(part.axes) == term.rank == len(nest.box), f"{name} is planned with another number of axes")
    for number, (axis, relation) in enumerate(zip(part.axes, term.axes, strict=True)):
        where = f"{name}, axis {number}"
        require(axis.relation == relation and axis.n == term.k.shape[number], f"{where}: masks of another relation")
        sizes = (axis.block_q, axis.block_k, axis.lanes.q_step, axis.lanes.k_step)
        require(min(sizes) >= 1, f"{where}: a block or a step of {min(sizes)}")
        require(axis.block_q == nest.box[number], f"{where}: tiles of {axis.block_q} rows in a box {nest.box}")
        first = nest.lanes[number]
        same = np.array_equal(axis.lanes.q_first, first.q_first) and np.array_equal(axis.lanes.rows, first.rows)
        same = same and _same_table(axis.lanes.queries, first.queries)
        require(same and axis.lanes.q_step == first.q_step, f"{where}: other lanes than its nest has")
        rows, keys = _on_axis(term.rows, term.q, number), _on_axis(term.keys, term.k, number)
        _lanes(axis, term.q.shape[number], rows, where)
        _key_table(axis.lanes, keys, where)
        # a token left out of a grid leaves others on its axes
        _runs(axis, Sets(rows, keys, rows if term.rank == 1 else EVERY), where)


def _on_axis(listed: Listed, grid: Grid, axis: int) -> Listed:
    """A set as coordinates of one axis: of several axes, the first is the one that keeps boxes from being full."""
    if len(grid.shape) == 1 or axis:
        return EVERY if axis else listed.moved(-grid.origin)
    return Listed(IntTable(np.unique(grid.coordinates(listed.tokens.array)[1][0])), kept=False)


def _same_table(a: Ints | None, b: Ints | None) -> bool:
    return a is b if a is None or b is None else np.array_equal(a, b)


def _lanes(axis: AxisPlan, m: int, listed: Listed, where: str) -> None:
    """Every row with a live key is in exactly one lane, and of listed rows no other row is."""
    seen = np.zeros(m, np.int32)
    lanes = axis.lanes
    require((lanes.queries is not None) == listed.kept, f"{where}: its queries are those of a list, or are not")
    require(bool((lanes.rows >= 1).all()), f"{where}: a lane without rows")
    size = m if lanes.queries is None else lanes.queries.size
    for first, rows in zip(lanes.q_first.tolist(), lanes.rows.tolist(), strict=True):
        last = first + lanes.q_step * (rows - 1)
        require(first >= 0 and last < size, f"{where}: rows {first} to {last} of {size}")
        if lanes.queries is None:
            seen[first : last + 1 : lanes.q_step] += 1
            continue
        queries = lanes.queries[first : last + 1 : lanes.q_step]
        require(bool((np.diff(queries) > 0).all()), f"{where}: listed queries out of order")
        require(bool(listed.within(0, m).holds(queries).all()), f"{where}: a query that is not in the list")
        seen[queries] += 1
    require(bool((seen <= 1).all()), f"{where}: a row is in two lanes")
    for start in range(0, m, ROWS):
        rows_here = np.arange(start, min(start + ROWS, m), dtype=np.int64)
        live = axis.relation.affine_rows(rows_here, axis.n)[2] > 0
        if listed.kept:
            live &= listed.holds(rows_here)
        lost = rows_here[live & (seen[rows_here] == 0)]
        require(lost.size == 0, f"{where}: row {lost[:1]} is planned nowhere")


def _key_table(lanes: Lanes, listed: Listed, where: str) -> None:
    """Listed keys, each once, by residue class and in order."""
    require((lanes.keys is not None) == listed.kept, f"{where}: its keys are those of a list, or are not")
    if lanes.keys is None:
        return
    tokens, step = lanes.keys.tokens, lanes.keys.step
    require(np.array_equal(np.sort(tokens), listed.tokens.array), f"{where}: other keys than the list has")
    order = np.lexsort((tokens, tokens % step))
    require(np.array_equal(order, np.arange(tokens.size)) and lanes.k_step == 1, f"{where}: listed keys out of order")


class Sets(NamedTuple):
    """Tokens of one axis: rows and keys that are not left out, and rows outside which nothing need be visited."""

    rows: Listed
    keys: Listed
    visiting: Listed


def _runs(axis: AxisPlan, sets: Sets, where: str) -> None:
    """In every row the visited interval, the masked interval and the full tiles agree with the row's affine keys."""
    tables = [table.astype(np.int64) for table in (axis.start, axis.stop, axis.left, axis.full)]
    start, stop, left, full = tables
    tiles = -((start - stop) // axis.block_k)
    sane = (start >= 0) & (stop >= start) & (left >= 0) & (full >= 0) & (left + full <= tiles)
    require(bool(sane.all()), f"{where}: a run of negative length")
    wanted = -(-int(axis.lanes.rows.max(initial=0)) // axis.block_q)
    require(start.shape == (len(axis.lanes), wanted), f"{where}: tables for {start.shape[1]} tiles, not {wanted}")
    lane_of, row_of = axis.lanes.every_row()
    for at in range(0, lane_of.size, ROWS):
        _rows(axis, lane_of[at : at + ROWS], row_of[at : at + ROWS], sets, where)


def _rows(axis: AxisPlan, lane: Ints, row: Ints, sets: Sets, where: str) -> None:
    lanes = axis.lanes
    tile = row // axis.block_q
    tables = (axis.start, axis.stop, axis.left, axis.full)
    start, stop, left, full = (table[lane, tile].astype(np.int64) for table in tables)
    queries = lanes.query_at(lane, row)
    lo, hi = lanes.bounds(axis.relation, axis.n, lane, row)

    def all_hold(held: NDBool, wrong: str) -> None:
        bad = np.flatnonzero(~held)
        if bad.size:
            require(False, f"{where}, query {int(queries[bad[0]])}: {wrong}")

    same, live = _same_keys(axis, sets.keys, queries, lane, lo, hi)
    all_hold(~live | same, "its mask has other keys than its row")
    all_hold(live | (hi <= lo), "a row without keys has some in its mask")
    visited = (start <= lo) & (hi <= stop)
    all_hold(~(live & sets.visiting.holds(queries)) | visited, "keys outside the runs of its tile")
    after = start + left * axis.block_k
    inner = after, np.minimum(after + full * axis.block_k, stop)
    some = inner[1] > inner[0]
    all_hold(~some | ((lo <= inner[0]) & (inner[1] <= hi)), "a tile called full is not")
    all_hold(~some | sets.rows.holds(queries), "a tile called full has a query that is left out")
    if sets.keys.left_out.size:
        span = tuple(lanes.k_first[lane] + lanes.k_step * x for x in inner)
        holes = _listed_keys(axis, sets.keys, queries, span)
        all_hold(~some | (holes == 0), "a tile called full has a key that is left out")
    last = lanes.k_first[lane] + lanes.k_step * (stop - 1)
    size = axis.n if lanes.keys is None else lanes.keys.tokens.size
    all_hold((stop <= start) | (last < size), "runs beyond the last key")


def _same_keys(
    axis: AxisPlan, listed: Listed, queries: Ints, lane: Ints, lo: Ints, hi: Ints
) -> tuple[NDBool, NDBool]:  # fmt: skip
    """(whether the positions [lo, hi) of each query, in its lane, are its keys; whether it has any)."""
    lanes = axis.lanes
    if lanes.keys is None:
        first, step, count = axis.relation.affine_rows(queries, axis.n)
        same = (lanes.k_first[lane] + lanes.k_step * lo == first) & (hi - lo == count)
        return same & ((count == 1) | (step == lanes.k_step)), count > 0
    span = axis.relation.interval(queries, axis.n)
    count = _listed_keys(axis, listed, queries, span)
    size = lanes.keys.tokens.size - lanes.k_first[lane]
    same = (hi - lo == count) & (lo >= 0) & (hi <= size)
    step, phase, _ = axis.relation.key_classes(queries)
    for position in (lo, hi - 1):  # the table is in order, class by class: both ends tell of all between
        key = lanes.key_at(lane, np.clip(position, 0, size - 1))
        same &= (span[0] <= key) & (key < span[1]) & (key % step == phase)
    return same, count > 0


def _listed_keys(axis: AxisPlan, listed: Listed, queries: Ints, span: tuple[Ints, ...]) -> Ints:
    """How many listed keys of `span` the congruences of each query allow: counted class by class."""
    step, phase, agree = axis.relation.key_classes(queries)
    count = np.zeros(queries.shape, np.int64)
    for one in np.unique(phase):
        tokens = listed.tokens.array[listed.tokens.array % step == one]
        rows = np.flatnonzero(phase == one) if step > 1 else slice(None)
        lo, hi = (np.searchsorted(tokens, x[rows]) for x in span)
        count[rows] = np.maximum(hi - lo, 0)
    return np.where(agree & axis.relation.rows.holds(queries), count, 0)


def _blocks(plan: TilePlan) -> None:
    """Every block of the remainder is planned once, in its own row of blocks."""
    remainder = plan.acsr.remainder
    verify_remainder(plan.acsr)
    if plan.blocks is None:
        require(len(remainder) == 0, f"{len(remainder)} blocks of the remainder are planned nowhere")
        return
    first = plan.blocks.first.astype(np.int64)
    require(first.size == plan.blocks.rows.size + 1 > 1, "tables of blocks of unlike length")
    require(first[0] == 0 and first[-1] == len(remainder) and bool((np.diff(first) > 0).all()), "blocks left out")
    owner = np.repeat(plan.blocks.rows, np.diff(first))
    require(np.array_equal(owner, remainder.rows), "a block is planned in another row of blocks")
    require(np.unique(plan.blocks.rows).size == plan.blocks.rows.size, "a row of blocks is planned twice")


# ---- meaning -----------------------------------------------------------------------------------------------------
def verify_pattern(pattern: Pattern, plan: TilePlan, batch: int = 0, head: int = 0) -> None:
    """Raise VerificationError if the pattern's predicate and the plan's Acsr differ on a pair looked at."""
    some = plan.acsr.m * plan.acsr.n > proof.EXHAUSTIVE
    proof.verify_pattern(pattern, plan.acsr, _at_edges(plan) if some else np.zeros(0, np.int64), batch, head)


def _at_edges(plan: TilePlan) -> Ints:
    """Rows two either side of tile edges, those of large grids by chance."""
    found = [np.zeros(0, np.int64)]
    for nest in plan.nests:
        tokens = np.zeros(1, np.int64)
        for lanes, block, size in zip(nest.lanes, nest.box, nest.q.shape, strict=True):
            edges = np.arange(0, int(lanes.rows.max(initial=0)) + block, block)
            near = (edges[:, None] + np.arange(-2, 2)).reshape(-1)
            index = (lanes.q_first[:, None] + lanes.q_step * near[None, :]).reshape(-1)
            if lanes.queries is not None:
                index = lanes.queries[index[(index >= 0) & (index < lanes.queries.size)]]
            coordinates = np.unique(index)
            tokens = thinned(joined(tokens, coordinates, size))
        found.append(nest.q.tokens(tokens))
    return np.concatenate(found)
