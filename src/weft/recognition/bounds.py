"""f(q) + g(k) < c with monotone f and g, as a bound on k that never decreases: the staircase under an inequality."""

from __future__ import annotations

import numpy as np

from weft.acsr import stairs
from weft.pattern import library as lib
from weft.pattern.algebra import Pattern
from weft.pattern.bounds import INF, Bound, Ints, IntTable, Stair, Steps
from weft.recognition import names, periodic, runs, spell
from weft.recognition.lines import Line, chosen
from weft.recognition.periodic import LONGEST, NoFormError, Piece, tidied
from weft.recognition.runs import Runs
from weft.recognition.sets import Comb
from weft.recognition.spans import Documents
from weft.recognition.spell import FAR

MAX_PIECES = 16  # pieces, or residue classes, that one bound may fall into


def below(f: Line, g: Line, c: int, within: Documents | None = None) -> Pattern:
    """f(q) + g(k) < c. Where g rises and f falls it is k < T(q), T(q) the first k with g(k) >= c - f(q). Where g falls
    and f rises it is k >= T(q), T(q) the first k with -g(k) >= f(q) - c + 1. `within`: only pairs of one document
    matter.
    """
    if f.falls and g.rises:
        return _bound("before", g, f.scaled(-1, c), within)
    if f.rises and g.falls:
        return _bound("from", -g, f.scaled(1, 1 - c), within)
    if f.bounded and g.bounded and within is not None:
        return _inside(f, g, c, within)
    raise NoFormError("a comparison of functions of q and k that are not monotone")


def _inside(f: Line, g: Line, c: int, within: Documents) -> Pattern:
    """Pairs of one document share its number d, so f(q) + g(k) = (f(q) - a d(q)) + (g(k) + a d(k)) for them. An a that
    is large enough makes both monotone if they are so in each document.
    """
    far = 2 * sum(max(map(abs, line.extent)) for line in (f, g)) + abs(c) + 1
    for by in (far, -far):
        shifted = f - within.queries.number.scaled(by), g + within.keys.number.scaled(by)
        falls = by > 0
        if (shifted[0].falls and shifted[1].rises) if falls else (shifted[0].rises and shifted[1].falls):
            return below(*shifted, c, within)
    raise NoFormError("a comparison of functions that are not monotone in each document")


def _bound(side: str, g: Line, asked: Line, within: Documents | None) -> Pattern:
    """k < T(q) ("before") or k >= T(q) ("from"), T(q) the first k with g(k) >= asked(q)."""
    if asked.bounded and g.bounded:
        at = _searched(g, asked)
    else:
        at = _first(g).of(asked)
    if at.is_constant:
        return _plain(side, at.value)
    if at.bounded:
        return listed(side, at, g.hi if g.bounded else FAR, within)
    return _formula(side, at)


def _searched(g: Line, asked: Line) -> Line:
    """q -> the first k with g(k) >= asked(q), the end of g where there is none."""
    first = runs.inverse(g.pieces) if g.kept_as_runs or asked.kept_as_runs else None
    if first is not None:
        return Line(tuple(first)).of(asked)
    run, step = asked.grain, g.grain
    found = np.minimum(np.searchsorted(g.all(step), asked.all(run), side="left") * step, g.hi)
    return Line(tuple(tidied([periodic.listed(found, asked.lo, asked.hi, run)])))


def _plain(side: str, at: int) -> Pattern:
    """k < at or k >= at."""
    if at >= FAR or at <= 0:
        return lib.full() if (at <= 0) == (side == "from") else lib.nothing()
    return lib.prefix(at) if side == "before" else ~lib.prefix(at)


# ---- of any length --------------------------------------------------------------------------------------------------
def _first(g: Line) -> Line:
    """y -> the first k with g(k) >= y, for a g that never decreases; FAR where there is none.

    Where g(k + P) = g(k) + S the first k for y + S is P later than the one for y.
    """
    found: list[Piece] = []
    reached = -INF
    for piece in g.pieces:
        first = piece.first
        last = INF - 1 if piece.stop >= INF and piece.slope else piece.last
        if first >= reached:
            found.append(Piece(reached, first + 1, np.array([piece.start])))
        if last > first:
            found += _inverse(piece, first + 1, last + 1)
        reached = last + 1
    if reached < INF:
        found.append(Piece(reached, INF, np.array([FAR])))
    return Line(tuple(tidied(found)))


def _inverse(piece: Piece, low: int, high: int) -> list[Piece]:
    """The first k of the piece's rule with f(k) >= y, for low <= y < high."""
    by_runs = runs.inverse([piece]) if piece.is_runs else None
    if by_runs is not None:
        return list(Line(tuple(by_runs)).restricted(low, high).pieces)
    if not piece.slope:
        if high - low > LONGEST or piece.length > LONGEST:
            raise NoFormError("a table of numbers that lie too far apart")
        k = np.arange(piece.start, piece.stop, dtype=np.int64)
        return list(Line.table(k[np.searchsorted(piece.at(k), np.arange(low, high))], low).pieces)
    period, slope = piece.period, piece.slope
    if slope > LONGEST:
        raise NoFormError(f"a slope of {slope}")
    base = int(piece.values[0])
    y = np.arange(slope, dtype=np.int64)
    turn = (y - base - 1) // slope
    within = np.searchsorted(piece.values - base, y - base - slope * turn, side="left")
    return [Piece(low, min(high, INF), period * turn + piece.run * within, period)]


def _formula(side: str, at: Line) -> Pattern:
    """A bound on a sequence of any length. It is a table of jumps, one staircase with clipped ends, or a union over the
    queries of each piece.
    """
    if not any(piece.slope for piece in at.pieces) and at.pieces[-1].constant:
        return names.of_bound(side, _steps(at), FAR, None)
    stair = _clipped_stair(at)
    if stair is not None:
        return _named(side, stair)
    if len(at.pieces) > MAX_PIECES:
        raise NoFormError("a bound of many slopes")
    return names.union([_of_piece(side, piece) for piece in at.pieces])


def _steps(at: Line) -> Steps:
    """A bound that is constant from some query on, as the table of its jumps."""
    found = at.restricted(at.lo, at.pieces[-1].start + 1).steps
    found = Runs.steps(found.begin, np.minimum(found.value, FAR), found.stop).joined()
    return Steps(IntTable(found.begin[1:]), IntTable(found.value))


def _clipped_stair(at: Line) -> Stair | None:
    """The staircase with constant ends that the bound is; keys begin at 0, so what it says below 0 does not matter."""
    sloped = [piece for piece in at.pieces if piece.slope]
    stair = _stair(sloped[0]) if len(sloped) == 1 else None
    if stair is None:
        return None
    first, last = at.pieces[0], at.pieces[-1]
    low = int(first.values[0]) if not first.slope else 0
    high = int(last.values[0]) if not last.slope else FAR
    if not _plainly(stair, at, low, high) and not _clipped(_line(stair), low, high).same(_clipped(at, 0, FAR)):
        return None
    clip = (-INF if low <= 0 else low, INF if high >= FAR else high)
    return Stair(stair.rise, stair.run, stair.shift, stair.base, *clip)


def _plainly(stair: Stair, at: Line, low: int, high: int) -> bool:
    """Whether the bound is the stair of its one sloped piece between constants that the stair is beyond. Both never
    decrease, so the ends of the piece tell.
    """
    place = next(i for i, piece in enumerate(at.pieces) if piece.slope)
    before, piece, after = at.pieces[:place], at.pieces[place], at.pieces[place + 1 :]
    if len(before) > 1 or len(after) > 1 or not all(p.constant for p in (*before, *after)):
        return False
    ends = [x for x, there in ((piece.start, before), (piece.stop, after)) if there]
    values = iter(stair(np.array([y for x in ends for y in (x - 1, x)], np.int64)).tolist())
    starts = not before or (next(values) <= max(low, 0) and (next(values) >= low or low <= 0))
    return starts and (not after or (next(values) <= high <= next(values)))


def _of_piece(side: str, piece: Piece) -> Pattern:
    """The bound of the queries of one piece; where it jumps several times in a period, each residue class has its own
    staircase.
    """
    rows = spell.of_queries(Line.between(piece.start, piece.stop).restricted(0, INF))
    if piece.constant:
        return spell.meet([rows, _plain(side, int(piece.values[0]))])
    period = piece.period
    stair = _stair(piece)
    if stair is not None:
        return spell.meet([rows, _named(side, stair)])
    if period > MAX_PIECES or not piece.slope:
        raise NoFormError(f"a bound that jumps in several places of {period} indices")
    classes = [
        spell.of_queries(Line.between(r, r + 1).of(Line.modulo(period)).restricted(0, INF)) for r in range(period)
    ]
    stairs_of = [_named(side, Stair(piece.slope, period, base=int(value))) for value in piece.span(0, period)]
    union = names.union([spell.meet(pair) for pair in zip(classes, stairs_of, strict=True)])
    return spell.meet([rows, union])


def _stair(piece: Piece) -> Stair | None:
    """The rule of a piece that jumps once in each period; None for others."""
    values = piece.over(0, piece.values.size + 1, piece.run)
    jumps = np.flatnonzero(np.diff(values)) + 1
    if jumps.size != 1:
        return None
    period, at = piece.period, int(jumps[0]) * piece.run
    shift = -at % period
    return Stair(piece.slope, period, shift, int(values[jumps[0]]) - piece.slope * ((at + shift) // period))


def _line(stair: Stair) -> Line:
    steps = Line.floor(stair.run).of(Line.index(0, INF, 1, stair.shift))
    return steps.scaled(stair.rise, stair.base)


def _clipped(line: Line, low: int, high: int) -> Line:
    for limit, lower in ((low, True), (high, False)):
        beyond = Line.between(-INF, 0).of(line.scaled(1, -limit))
        level = Line.constant(limit, line.lo, line.hi)
        line = chosen(beyond, level, line) if lower else chosen(beyond, line, level)
    return line


def _named(side: str, bound: Bound, n: int = FAR) -> Pattern:
    """A bound on n keys as the call that a reader knows it by."""
    if isinstance(bound, Stair) and bound == Stair(base=bound.base):
        ends = (-FAR, bound.base - 1, True, False) if side == "before" else (bound.base, FAR, False, True)
        return names.of_diagonals([Comb(ends[0], ends[1], 1, 1, *ends[2:])], 0, 0)
    return names.of_bound(side, bound, FAR if isinstance(bound, Stair) else n, None)


# ---- of a known length ----------------------------------------------------------------------------------------------
def listed(side: str, at: Line, n: int, within: Documents | None) -> Pattern:
    """A bound that is known row by row. In a document all T up to its first key are alike, and all T from its end."""
    cells = at.steps if within is None else within.queries.cut(at.steps)
    least = most = np.clip(cells.value, 0, n)
    if within is not None:
        least, most = _limits(most, n, cells, within)
    if least[-1] <= most[0]:
        return _plain(side, n if most[0] >= n and side == "before" else int(least[-1]))
    rows = cells.begin, cells.begin + cells.lengths - 1
    return _named(side, stairs.simplest(least, most, n, rows), n)


def _limits(at: Ints, n: int, cells: Runs, within: Documents) -> tuple[Ints, Ints]:
    """(least, most) that T may be in the rows of each cell where only the pairs of one document matter."""
    document = within.queries.of(cells.begin)
    start, stop = within.keys.first[document], within.keys.ends[document]
    least = np.maximum.accumulate(np.where(at <= start, 0, np.minimum(at, stop)))
    most = np.where(at >= stop, n, np.maximum(at, start))
    return least, np.minimum.accumulate(most[::-1])[::-1]
