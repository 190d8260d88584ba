"""Plans with one thing wrong. Every function returns a new plan; tables are copied before they are written."""

from collections.abc import Iterator
from dataclasses import fields, replace

import numpy as np

from weft.acsr import Acsr, Grid, Remainder
from weft.acsr.format import BLOCK
from weft.pattern.bounds import INF, IntTable, Stair, Steps
from weft.pattern.listed import Listed
from weft.pattern.relation import Relation, Residue
from weft.planning.tiles import AxisPlan, LoopNest, TilePlan

TABLES = ("start", "stop", "left", "full")
LANE_TABLES = ("q_first", "rows", "k_first", "live")


def changed(table, index, by):
    """A copy of a table with one entry moved by `by`; a flag is turned over instead."""
    copy = np.array(table)
    copy[index] = not copy[index] if copy.dtype == np.bool_ else copy[index] + by
    return copy


def item(values, index, value):
    """The tuple with one item replaced."""
    return (*values[:index], value, *values[index + 1 :])


def with_nest(plan: TilePlan, nest: int = 0, **new) -> TilePlan:
    return replace(plan, nests=item(plan.nests, nest, replace(plan.nests[nest], **new)))


def with_part(plan: TilePlan, nest: int = 0, part: int = 0, **new) -> TilePlan:
    parts = plan.nests[nest].parts
    return with_nest(plan, nest, parts=item(parts, part, replace(parts[part], **new)))


def with_axis(plan: TilePlan, place: tuple[int, int, int] = (0, 0, 0), **new) -> TilePlan:
    """place: (nest, part, axis)."""
    nest, part, axis = place
    axes = plan.nests[nest].parts[part].axes
    return with_part(plan, nest, part, axes=item(axes, axis, replace(axes[axis], **new)))


def with_lanes(plan: TilePlan, place: tuple[int, int, int] = (0, 0, 0), **new) -> TilePlan:
    lanes = axis_at(plan, place).lanes
    return with_axis(plan, place, lanes=replace(lanes, **new))


def with_entry(plan: TilePlan, name: str, index, by: int, place: tuple[int, int, int] = (0, 0, 0)) -> TilePlan:
    """One entry of a table of an axis moved by `by`."""
    return with_axis(plan, place, **{name: changed(getattr(axis_at(plan, place), name), index, by)})


def with_these_lanes(plan: TilePlan, which: list[int]) -> TilePlan:
    """The lanes `which` of a plan of one axis and one part, in all of its tables."""
    axis = axis_at(plan)
    plan = with_axis(plan, **{name: getattr(axis, name)[which] for name in TABLES})
    return with_lanes(plan, **{name: getattr(axis.lanes, name)[which] for name in LANE_TABLES})


def dropped(plan: TilePlan, tile: int, place: tuple[int, int, int] = (0, 0, 0)) -> TilePlan:
    """One tile of rows visits no keys."""
    axis = axis_at(plan, place)
    here = np.arange(axis.stop.shape[1]) == tile
    tables = {"stop": axis.start, "left": 0, "full": 0}
    return with_axis(plan, place, **{name: np.where(here, x, getattr(axis, name)) for name, x in tables.items()})


def with_blocks(plan: TilePlan, name: str, index, by: int) -> TilePlan:
    """One entry of a table of the remainder's nest moved by `by`."""
    blocks = replace(plan.blocks, **{name: changed(getattr(plan.blocks, name), index, by)})
    return replace(plan, blocks=blocks)


def with_bit(acsr: Acsr, row: int, key: int) -> Acsr:
    """The Acsr with a remainder of one block and one bit."""
    bits = np.zeros((1, BLOCK, BLOCK // 8), np.uint8)
    bits[0, row % BLOCK, key % BLOCK // 8] = 128 >> key % 8
    block = (np.array([x], np.int32) for x in (row // BLOCK, key // BLOCK, 0))
    return replace(acsr, remainder=Remainder(*block, bits))


def axis_at(plan: TilePlan, place: tuple[int, int, int] = (0, 0, 0)) -> AxisPlan:
    nest, part, axis = place
    return plan.nests[nest].parts[part].axes[axis]


def places(plan: TilePlan) -> Iterator[tuple[int, int, int]]:
    """(nest, part, axis) of every AxisPlan."""
    for i, nest in enumerate(plan.nests):
        for j, part in enumerate(nest.parts):
            for a in range(len(part.axes)):
                yield i, j, a


def every_entry(plan: TilePlan) -> Iterator[tuple[str, TilePlan]]:
    """(what was done, plan) for every entry of every table of a plan, moved by one either way."""
    for by in (-1, 1):
        for place in places(plan):
            axis = axis_at(plan, place)
            for name in TABLES:
                for index in np.ndindex(getattr(axis, name).shape):
                    yield f"{name}{list(index)} {by:+d} at {place}", with_entry(plan, name, index, by, place)
        for place in places(plan):
            if place[1] == 0:
                yield from _lane_entries(plan, place, by)
        if plan.blocks is not None:
            for name in ("rows", "first"):
                table = getattr(plan.blocks, name)
                for index in np.ndindex(table.shape):
                    yield f"blocks.{name}{list(index)} {by:+d}", with_blocks(plan, name, index, by)


def _lane_entries(plan: TilePlan, place: tuple[int, int, int], by: int) -> Iterator[tuple[str, TilePlan]]:
    """Lane tables: alone in the first part, and alike in all parts of the nest."""
    nest, _, axis = place
    for name in LANE_TABLES:
        for index in np.ndindex(getattr(axis_at(plan, place).lanes, name).shape):
            alone = every = plan
            for part in range(len(plan.nests[nest].parts)):
                here = (nest, part, axis)
                entry = {name: changed(getattr(axis_at(plan, here).lanes, name), index, by)}
                every = with_lanes(every, here, **entry)
                alone = every if part == 0 else alone
            what = f"lanes.{name}{list(index)} {by:+d} at nest {nest}, axis {axis}"
            yield what, every
            if alone is not every:
                yield f"{what}, part 0 alone", alone
    yield from _listed_entries(plan, place, by)


def _listed_entries(plan: TilePlan, place: tuple[int, int, int], by: int) -> Iterator[tuple[str, TilePlan]]:
    """The tables of listed queries and keys, and the tokens that a part leaves out."""
    lanes, (nest, part, _) = axis_at(plan, place).lanes, place
    for index in range(0 if lanes.queries is None else lanes.queries.size):
        wrong = plan
        for other in range(len(plan.nests[nest].parts)):
            wrong = with_lanes(wrong, (nest, other, 0), queries=changed(lanes.queries, index, by))
        yield f"query {index} of a list {by:+d} at {place}", wrong
    for index in range(0 if lanes.keys is None else lanes.keys.tokens.size):
        keys = replace(lanes.keys, tokens=changed(lanes.keys.tokens, index, by))
        yield f"key {index} of a list {by:+d} at {place}", with_lanes(plan, place, keys=keys)
    for side in ("rows", "keys"):
        for what, listed in _lists(getattr(plan.nests[nest].parts[part], side), by):
            yield f"left out {side}: {what} at {place}", with_part(plan, nest, part, **{side: listed})


def _lists(listed: Listed, by: int) -> Iterator[tuple[str, Listed]]:
    """A list with one token moved, or without it."""
    tokens = listed.tokens.array
    for index in range(tokens.size):
        moved = changed(tokens, index, by)
        if (np.diff(moved) > 0).all():
            yield f"token {index} {by:+d}", replace(listed, tokens=IntTable(moved))
        if by > 0:
            yield f"token {index} forgotten", replace(listed, tokens=IntTable(np.delete(tokens, index)))


def every_number(plan: TilePlan) -> Iterator[tuple[str, TilePlan]]:
    """(what was done, plan) for every integer of a plan that is in no table, moved by one either way, but not to 0."""
    for by in (-1, 1):
        for place in places(plan):
            axis = axis_at(plan, place)
            for name in ("n", "block_q", "block_k"):
                if value := getattr(axis, name) + by:
                    yield f"{name} {by:+d} at {place}", with_axis(plan, place, **{name: value})
            for name in ("q_step", "k_step"):
                if value := getattr(axis.lanes, name) + by:
                    yield f"{name} {by:+d} at {place}", with_lanes(plan, place, **{name: value})
        for i, nest in enumerate(plan.nests):
            for what, new in _nest_numbers(nest, by):
                yield f"{what} of nest {i}", with_nest(plan, i, **new)
            for j, part in enumerate(nest.parts):
                yield f"term {by:+d} at {i, j}", with_part(plan, i, j, term=part.term + by)
                for what, grid in _grids(part.k, by):
                    yield f"keys' {what} at {i, j}", with_part(plan, i, j, k=grid)


def _nest_numbers(nest: LoopNest, by: int) -> Iterator[tuple[str, dict[str, object]]]:
    for a, block in enumerate(nest.box):
        yield f"box[{a}] {by:+d}", {"box": item(nest.box, a, block + by)}
    for what, grid in _grids(nest.q, by):
        yield f"queries' {what}", {"q": grid}


def _grids(grid: Grid, by: int) -> Iterator[tuple[str, Grid]]:
    yield f"origin {by:+d}", replace(grid, origin=grid.origin + by)
    for a, size in enumerate(grid.shape):
        yield f"shape[{a}] {by:+d}", replace(grid, shape=item(grid.shape, a, size + by))


def every_bound(acsr: Acsr) -> Iterator[tuple[str, Acsr]]:
    """(what was done, Acsr) for every finite integer of every bound and congruence of every term, moved by one."""
    for t, term in enumerate(acsr.terms):
        for a, axis in enumerate(term.axes):
            for what, relation in _relations(axis):
                changed_term = replace(term, axes=item(term.axes, a, relation))
                yield f"term {t}, axis {a}: {what}", replace(acsr, terms=item(acsr.terms, t, changed_term))
        for side, size in (("rows", acsr.m), ("keys", acsr.n)):
            for by in (-1, 1):
                for what, listed in _lists(getattr(term, side), by):
                    changed_term = replace(term, **{side: listed.within(0, size)})
                    yield f"term {t}, {side}: {what}", replace(acsr, terms=item(acsr.terms, t, changed_term))


def _relations(relation: Relation) -> Iterator[tuple[str, Relation]]:
    for side in ("lower", "upper"):
        bounds = getattr(relation, side)
        for i, bound in enumerate(bounds):
            for what, new in _bounds(bound):
                yield f"{side}[{i}].{what}", replace(relation, **{side: item(bounds, i, new)})
    for name in ("rows", "keys", "diagonal"):
        residue = getattr(relation, name)
        if residue.step > 1:
            yield f"{name}.phase", replace(relation, **{name: Residue(residue.step, residue.phase + 1)})
        yield f"{name}.step", replace(relation, **{name: Residue(residue.step + 1, residue.phase)})


def _bounds(bound: Stair | Steps) -> Iterator[tuple[str, Stair | Steps]]:
    if isinstance(bound, Steps):
        for name in ("breaks", "values"):
            table = getattr(bound, name).array
            for index in range(table.size):
                for by in (-1, 1):
                    # a table that would fall is pushed to rise again
                    moved = np.maximum.accumulate(changed(table, index, by))
                    yield f"{name}[{index}] {by:+d}", replace(bound, **{name: IntTable(moved)})
        return
    for field in fields(bound):
        value = getattr(bound, field.name)
        for by in (-1, 1):
            if abs(value) < INF and (value + by >= 1 or field.name not in ("rise", "run")):
                yield f"{field.name} {by:+d}", replace(bound, **{field.name: value + by})
