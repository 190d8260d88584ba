"""A plan in words: the pattern drawn, the bytes of its format, its loop nests. On a GPU also what was weighed, and
what bounds each kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from weft.acsr.picture import owned
from weft.napkin.formulas import naive_attention_transfers
from weft.pattern.algebra import Pattern
from weft.pattern.draw import OF_SHADES, drawn
from weft.planning.choose import Decision
from weft.planning.cost import FLOORS, Cost, moved
from weft.planning.families import tile
from weft.planning.families.base import Alternative, InTiles, Tiled
from weft.planning.families.components import Components
from weft.planning.families.fused_backward import Fused, cut
from weft.planning.families.one_kernel import IN_GROUPS, IN_ONE, OneKernel
from weft.planning.families.sparse_keys import parts_of
from weft.planning.families.split_kv import ByRows
from weft.planning.features import in_halves
from weft.planning.heads import Share, count_heads
from weft.planning.problem import DTYPES, Problem
from weft.target import Gpu

SHOWN = 6  # rejected tilings, the best ones
WORDS = {
    "starts": "programs that begin and end",
    "edges": "tiles with a mask",
    "full": "tiles without one",
    "uneven": "processors that wait",
    "merging": "sums of several launches",
    "launches": "launches",
}


# ---- the plan --------------------------------------------------------------------------------------------------------
def head(pattern: Pattern, problem: Problem, shares: Sequence[Share], nbytes: int) -> Iterator[str]:
    """What is computed. shares: of queries. Every number is counted, not estimated, but for the predicted times."""
    nnz = sum(share.plan.acsr.nnz * count_heads(share.heads) for share in shares)
    visited = sum(share.plan.visited * count_heads(share.heads) for share in shares)
    part = nnz / max(1, problem.batch * problem.q_heads * problem.m * problem.n)
    useful = 2 * (problem.d + problem.dv) * nnz / 1e9
    yield f"{pattern}"
    yield f"problem   {problem}"
    live = f"{nnz} pairs over all heads, {part:.3%} of all"
    yield f"live      {live}; {visited} computed ({nnz / max(1, visited):.1%} useful)"
    yield f"work      {useful:.2f} useful GFLOP forward, {useful * 2.5:.2f} backward"
    yield f"tables    {nbytes} bytes, forward and transposed"
    yield f"drawing   {OF_SHADES}"
    for share in shares:
        acsr = share.plan.acsr
        picture = drawn(owned(acsr, 24, 24).share) if acsr.m and acsr.n else ""
        yield f"heads     {_heads(share)}"
        yield from (f"    |{row}|" for row in picture.splitlines())
        yield from (str(acsr), str(share.plan))
        for line in share.plan.report:
            yield f"  predicted {line}" if line.startswith("nest") else f"  chosen: {line}"


def _heads(share: Share) -> str:
    return "; ".join(
        f"batch rows {h.batch[0]}-{h.batch[1] - 1}, key heads {h.kv[0]}-{h.kv[1] - 1}, "
        f"{h.group[1] - h.group[0]} query heads each"
        for h in share.heads
    )


# ---- tilings ---------------------------------------------------------------------------------------------------------
def tilings(taken: Tiled, decision: Decision[Tiled], asked: bool, wrong: str) -> Iterator[str]:
    """One direction on a GPU. asked: its tiling was asked for. wrong: why it cannot run."""
    given = taken.asked
    if not taken.works or wrong:
        yield f"{given.direction:<9} {f'cannot run: {wrong}' if taken.works else 'nothing to compute'}"
        return
    count = len(decision.weighed)
    cheapest = "cheapest" if taken.seconds <= min(one.seconds for one in decision.weighed) else "one"
    why = f"{cheapest} of {count} offered" if count > 1 else "the one offered"
    why = "tuned, or asked for" if asked else why
    yield f"{given.direction:<9} {_named(taken)}: {_ms(taken.seconds)} predicted on {given.gpu.name}, {why}"
    yield f"  {_counted(taken)}"
    if in_halves(given.direction, given.problem, given.gpu):
        yield "  as many again: dV first, then dK, because no thread has registers for both sums"
    yield f"  {_bound(taken.cost)}"
    yield f"  {_causes(taken.cost)}"
    offered = {one.ways: one for one in decision.weighed}
    legal = (given.alike(one) for one in tile.legal(given.direction, given.problem, given.rank, given.gpu))
    every = {one.ways: one for one in legal} | offered
    others = sorted((one for ways, one in every.items() if ways != taken.ways), key=lambda one: one.seconds)
    for one in others[:SHOWN]:
        yield f"  {'offered' if one.ways in offered else 'legal'}: {_named(one)}: {_against(one.cost, taken.cost)}"
    if len(others) > SHOWN:
        yield f"  and {len(others) - SHOWN} more, the worst {_ms(others[-1].seconds)}"
    yield from _reasons(decision.against)


def _reasons(against: Iterable[tuple[str, str]]) -> Iterator[str]:
    return (f"  against {family}: {reason}" for family, reason in against)


def _named(one: Tiled) -> str:
    if len(one.packs) == 1:
        return str(one.tilings[0])
    return f"unlike heads apart, in {len(one.tilings)} packs: {'; '.join(map(str, one.tilings))}"


def _counted(one: Tiled) -> str:
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
    return " + ".join(f"{words} {_ms(float(getattr(cost, x)))}" for x, words in WORDS.items() if getattr(cost, x))


def _against(cost: Cost, taken: Cost) -> str:
    """How much more it would take, and on what."""
    more = {x: float(getattr(cost, x)) - float(getattr(taken, x)) for x in WORDS}
    largest = max(more, key=lambda x: abs(more[x]))
    over = cost.seconds / taken.seconds - 1
    sign = "+" if more[largest] >= 0 else "-"
    return f"{_ms(cost.seconds)}, {over:+.0%}: {WORDS[largest]} {sign}{_ms(abs(more[largest]))}"


# ---- beside tiles ----------------------------------------------------------------------------------------------------
def forwards(decision: Decision[Alternative], problem: Problem, gpu: Gpu, nnz: int) -> Iterator[str]:
    """What a forward in tiles was weighed against, and what a kernel for each operation would move more.

    Such kernels would write and read the scores of live pairs before and after the soft maximum.
    """
    yield from _alternatives(decision, problem, gpu)
    rows = problem.batch * problem.q_heads * problem.m
    scores = naive_attention_transfers(d=0, v=0, nbytes=DTYPES[problem.dtype], q=rows, x=nnz / rows)
    more, ratio = _ms(scores / gpu.bandwidth), 1 + scores / moved("forward", problem)
    what = "products and soft maximum as kernels of their own"
    yield f"  rejected: {what}: {more} more for scores in memory, {ratio:.3g} times the bytes of one kernel"


def backwards(decision: Decision[Alternative], problem: Problem, gpu: Gpu, wrong: str) -> Iterator[str]:
    """Two kernels, and what they were weighed against. wrong: why they cannot run."""
    two = decision.weighed[0]
    assert isinstance(two, InTiles)
    if not two.tiles[0].works or wrong:
        yield "backward  cannot run" if two.tiles[0].works else "backward  nothing to compute"
        return
    yield f"backward  two kernels, {_ms(two.seconds)}"
    yield from _alternatives(decision, problem, gpu)


def of_pairs(without: Iterable[str], tiles: Components | str) -> Iterator[str]:
    """Which kernels compute score functions, biases and dropout. without: families that were taken, and have none.
    tiles: of components, which what only adds to scores takes.
    """
    if isinstance(tiles, Components):
        yield f"options   what only adds to scores, as a bias: a kernel of {tiles.count} tiles of components"
    names = ", ".join(without)
    if names:
        why = f"kernels of {names} have no function of a pair"
        yield f"options   score functions, biases and dropout: tile kernels instead, gradients by two; {why}"


def _alternatives(decision: Decision[Alternative], problem: Problem, gpu: Gpu) -> Iterator[str]:
    tiles, *others = decision.weighed
    for one in others:
        how, when, margin = _described(one, problem, gpu)
        if one in decision.listed:
            yield f"  but taken is: {how}: {_ms(one.seconds)}{when}"
            continue
        over = one.seconds / tiles.seconds - 1
        yield f"  rejected: {how}: {_ms(one.seconds)}, {over:+.0%}" + f", and taken {margin}" * (over < 0)
    yield from _reasons(decision.against)


def _described(one: Alternative, problem: Problem, gpu: Gpu) -> tuple[str, str, str]:
    """(what it is, when it is taken, by which margin)."""
    if isinstance(one, ByRows):
        shares = f"keys in {one.shape.splits} shares" if one.shape.splits > 1 else "keys not split"
        when = "; tiles leave the GPU idle, or have more rows than queries"
        return f"by rows, {one.shape.rows} in a program, {shares}", when, "where it saves two launches"
    if isinstance(one, OneKernel):
        sums = f", of these {_ms(one.sums)} for sums of dQ in memory"
        share = IN_GROUPS if one.tiling.groups else IN_ONE
        return f"one kernel of {one.tiling}", f"{sums}, unless sums must come in order", f"at {share} of two"
    assert isinstance(one, Fused)
    runs = cut(one.config.window, problem, gpu)
    how = f"one pass over queries, {runs.runs} runs of {runs.per} tiles for each head of keys"
    for keys in one.config.launches:
        how += f", then {keys.count} keys beside the window in {parts_of(keys, problem, gpu).parts} parts"
    return how, ", where scores are not changed", "where it is faster"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms" if seconds < 0.1 else f"{seconds * 1e3:.0f} ms"
