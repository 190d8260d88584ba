"""A GPU's choice as an argument: what bounds it, how far it is from the bound, what was rejected and why."""

from __future__ import annotations

from collections.abc import Iterator

from weft.napkin.formulas import naive_attention_transfers
from weft.planning.attention_plan import AttentionPlan
from weft.planning.candidates import in_halves, in_one, shared_of
from weft.planning.choice import IN_ONE, Candidate, candidate, offered, rank_of, ranked, unlike_apart
from weft.planning.cost import FLOORS, Cost, adding, moved
from weft.planning.few_keys import parts_of
from weft.planning.heads import rows_of
from weft.planning.problem import DTYPES
from weft.planning.short import cut
from weft.planning.tiling import DIRECTIONS, Direction
from weft.planning.walk import Walk
from weft.target import Gpu

CAUSES = ("starts", "edges", "full", "uneven", "merging", "launches")
SHOWN = 6  # rejected candidates, the best ones
WORDS = {
    "starts": "programs that begin and end",
    "edges": "tiles with a mask",
    "full": "tiles without one",
    "uneven": "processors that wait",
    "merging": "sums of several launches",
    "launches": "launches",
}


def argue(plan: AttentionPlan, gpu: Gpu) -> Iterator[str]:
    """Lines on the kernels of all directions, for a plan whose target is this GPU."""
    for direction in DIRECTIONS:
        yield from _direction(plan, gpu, direction)
        if direction == "forward" and plan.nnz:
            yield _rows_or_tiles(plan)
            yield _fused(plan, gpu)
    yield _backward(plan, gpu)
    if plan.walk is not None:
        yield _walk(plan, plan.walk, gpu)


def _direction(plan: AttentionPlan, gpu: Gpu, direction: Direction) -> Iterator[str]:
    taken = plan.candidate(direction)
    if not taken.works:
        yield f"{direction:<9} nothing to compute"
        return
    wrong = plan.no_room(direction)
    if wrong:
        yield f"{direction:<9} cannot run: {wrong}"
        return
    rows = rows_of(plan.towards(direction))
    menu = offered(direction, rows, plan.problem, gpu)
    apart = unlike_apart(direction, rows, plan.problem, gpu, menu)
    count = len(menu) + (apart is not None)
    cheapest = "cheapest" if apart is None or apart.cost.seconds >= taken.cost.seconds else "one"
    why = f"{cheapest} of {count} offered" if count > 1 else "the one offered"
    if direction in dict(plan.fixed):
        why = "tuned, or asked for"
    yield f"{direction:<9} {_named(taken)}: {_ms(taken.cost.seconds)} predicted on {gpu.name}, {why}"
    yield f"  {_counted(taken)}"
    if in_halves(direction, plan.problem, gpu):
        yield "  as many again: dV first, then dK, because no thread has registers for both sums"
    yield f"  {_bound(taken.cost)}"
    yield f"  {_causes(taken.cost)}"
    others = ranked(direction, rows, plan.problem, gpu) + ([] if apart is None else [apart])
    others = sorted((one for one in others if one.ways != taken.ways), key=lambda one: one.cost.seconds)
    for one in others[:SHOWN]:
        known = one is apart or one.tilings[0] in menu
        yield f"  {'offered' if known else 'legal'}: {_named(one)}: {_against(one.cost, taken.cost)}"
    if len(others) > SHOWN:
        yield f"  and {len(others) - SHOWN} more, the worst {_ms(others[-1].cost.seconds)}"


def _rows_or_tiles(plan: AttentionPlan) -> str:
    """Whether the forward is computed by rows instead."""
    found, tiles = plan.as_rows(), plan.candidate("forward").cost.seconds
    if isinstance(found, str):
        return f"  rejected: by rows: {found}"
    shape = found.shape
    how = f"by rows, {shape.rows} in a program, {_shares(shape.splits)}: {_ms(found.cost.seconds)}"
    if plan.by_rows is not None:
        return f"  but taken is: {how}; tiles leave the GPU idle, or have more rows than queries"
    over = found.cost.seconds / tiles - 1
    return f"  rejected: {how}, {over:+.0%}" + ", within what it may be off by" * (over < 0)


def _shares(splits: int) -> str:
    return f"keys in {splits} shares" if splits > 1 else "keys not split"


def _fused(plan: AttentionPlan, gpu: Gpu) -> str:
    """What a kernel for each operation would move beside all tensors: the scores of live pairs, written and read before
    and after the soft maximum (`weft.napkin.formulas.naive_attention_transfers`).
    """
    p = plan.problem
    rows = p.batch * p.q_heads * p.m
    scores = naive_attention_transfers(d=0, v=0, nbytes=DTYPES[p.dtype], q=rows, x=plan.nnz / rows)
    more, ratio = _ms(scores / gpu.bandwidth), 1 + scores / moved("forward", p)
    what = "products and soft maximum as kernels of their own"
    return f"  rejected: {what}: {more} more for scores in memory, {ratio:.3g} times the bytes of one kernel"


def _named(one: Candidate) -> str:
    if len(one.tilings) == 1:
        return str(one.tilings[0])
    return f"unlike heads apart, in {len(one.tilings)} packs: {'; '.join(map(str, one.tilings))}"


def _backward(plan: AttentionPlan, gpu: Gpu) -> str:
    """One kernel or two."""
    two = plan.candidate("dq"), plan.candidate("dkdv")
    if not two[0].works:
        return "backward  nothing to compute"
    if plan.no_room("dq") or plan.no_room("dkdv"):
        return "backward  cannot run"
    seconds = sum(one.cost.seconds for one in two)
    rows = rows_of(plan.in_one or plan.towards("dkdv"))
    tiling = in_one(plan.problem, rank_of(rows))
    if tiling is None:
        return f"backward  two kernels, {_ms(seconds)}: one that makes dQ beside dK and dV has too few registers"
    if shared_of("dkdv", plan.problem, tiling, gpu) > gpu.shared:
        return f"backward  two kernels, {_ms(seconds)}: for one of {tiling} the card's shared memory is too small"
    found = candidate("dkdv", rows, plan.problem, gpu, tiling)
    sums = adding(found.works, plan.problem, tiling.cols, gpu)
    other = f"{_ms(found.cost.seconds + sums)}, of these {_ms(sums)} for sums of dQ in memory"
    if plan.in_one is None:
        return (
            f"backward  two kernels, {_ms(seconds)}; rejected: one of {tiling}: {other}; it is taken at {IN_ONE} of two"
        )
    return f"backward  one kernel of {tiling} unless sums must come in order: {other}; two: {_ms(seconds)}"


def _walk(plan: AttentionPlan, walk: Walk, gpu: Gpu) -> str:
    """Whether gradients of a short window come of one walk."""
    runs = cut(walk.window, plan.problem, gpu)
    how = f"one walk over queries, {runs.runs} runs of {runs.per} tiles for each head of keys"
    for few in walk.launches:
        how += f", then {few.count} keys beside the window in {parts_of(few, plan.problem, gpu).parts} parts"
    taken = f"  but taken is: {how}" if plan.one_walk else f"  rejected: {how}"
    without = ", where scores are not changed" if plan.one_walk else ""
    return f"{taken}: {_ms(walk.seconds(plan.problem, gpu))}{without}"


def _counted(one: Candidate) -> str:
    programs, edge, full = (sum(getattr(work, x) for work in one.works) for x in ("programs", "edge", "full"))
    waves = f" in {len(one.works)} launches one after the other" if len(one.works) > 1 else ""
    return f"{programs:,} programs{waves}: {edge:,} tiles with a mask, {full:,} without"


def _bound(cost: Cost) -> str:
    """The floor, and what the prediction is of it."""
    least = float(getattr(cost, cost.bound))
    rest = [f"{x} {_ms(float(getattr(cost, x)))}" for x in FLOORS if x != cost.bound]
    share = f"the floor of these tiles is {least / cost.seconds:.0%} of the prediction"
    return f"bound by {cost.bound}, {_ms(least)} ({', '.join(rest)}): {share}"


def _causes(cost: Cost) -> str:
    return " + ".join(f"{WORDS[x]} {_ms(float(getattr(cost, x)))}" for x in CAUSES if getattr(cost, x))


def _against(cost: Cost, taken: Cost) -> str:
    """How much more it would take, and on what."""
    more = {x: float(getattr(cost, x)) - float(getattr(taken, x)) for x in CAUSES}
    largest = max(more, key=lambda x: abs(more[x]))
    over = cost.seconds / taken.seconds - 1
    sign = "+" if more[largest] >= 0 else "-"
    return f"{_ms(cost.seconds)}, {over:+.0%}: {WORDS[largest]} {sign}{_ms(abs(more[largest]))}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms" if seconds < 0.1 else f"{seconds * 1e3:.0f} ms"
