"""Sets of one index and sets of k - q, given as Lines of 0 and 1, as library calls."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.pattern import library as lib
from weft.pattern.algebra import Pattern
from weft.pattern.bounds import INF, Ints
from weft.recognition import names, sets
from weft.recognition.lines import Line
from weft.recognition.periodic import NoFormError, Piece
from weft.recognition.remember import remembered
from weft.recognition.sets import Comb

FAR = 1 << 31  # no sequence is longer
MAX_RUNS = 4  # arithmetic runs up to which a table's set is spelled by them; more become a list
MAX_LISTED = 1 << 24  # indices of a table that is looked through
MAX_COMBS = 2048  # arithmetic runs that a set may consist of
FULL = lib.full()


def of_queries(test: Line) -> Pattern:
    """The queries of a set see every key."""
    listed = _listed(test)
    return names.of_queries(combs(test), 0, None) if listed is None else lib.global_tokens(listed, columns=False)


def of_keys(test: Line) -> Pattern:
    """Every query sees the keys of a set."""
    listed = _listed(test)
    if listed is not None:
        return lib.global_tokens(listed, rows=False)
    return names.of_keys([_everywhere(comb) for comb in combs(test)], 0)


@remembered
def _listed(test: Line) -> Ints | None:
    """The indices of a set that is given by a table and falls into many runs; None of any other set."""
    if not test.bounded or test.hi - test.lo > MAX_LISTED:
        return None
    if not test.kept_as_runs and all(piece.values.size == 1 for piece in test.pieces):
        return None
    if test.kept_as_runs and np.count_nonzero(test.steps.value) <= MAX_RUNS:
        return None
    bits = test.all() != 0
    edges = np.count_nonzero(bits[1:] != bits[:-1])
    if edges <= 2 * MAX_RUNS or (edges <= 2 * MAX_COMBS and len(combs(test)) <= MAX_RUNS):
        return None
    return np.flatnonzero(bits) + test.lo


def of_either(queries: Line, keys: Line) -> Pattern:
    """Tokens of one set as queries and as keys; the caller knows that the sets are the same."""
    found = combs(queries)
    if len(found) == 1 and found[0].solid and found[0].first == 0 and not found[0].open_right:
        return lib.global_tokens(found[0].last + 1)
    return of_queries(queries) | of_keys(keys)


def meet(parts: Sequence[Pattern]) -> Pattern:
    """The intersection, without parts that exclude nothing."""
    return names.intersection([part for part in parts if part != FULL])


@remembered
def of_diagonals(test: Line) -> Pattern:
    """k - q lies in a set."""
    step = _strided(test)
    return lib.strided(step) if step else names.of_diagonals(combs(test), 0, 0)


def _strided(test: Line) -> int:
    """The stride of Sparse Transformer's strided pattern, 0 if that is not what the set is."""
    for step in {piece.period for piece in test.pieces} - {1}:
        past = Line.between(-INF, 1) & (Line.between(1 - step, 1) | Line.between(0, 1).of(Line.modulo(step)))
        if past.same(test):
            return step
    return 0


def _everywhere(comb: Comb) -> Comb:
    """A comb of keys that reaches both ends of any sequence says so."""
    whole = comb.open_right and comb.first < comb.step
    return Comb(comb.first, comb.last, comb.step, comb.width, comb.open_left or whole, comb.open_right)


def is_plain(test: Line) -> bool:
    """Whether a bounded set is one or two arithmetic runs."""
    if test.kept_as_runs:
        gaps = np.diff(_live(test)[0])
        if np.count_nonzero(gaps[1:] != gaps[:-1]) > 2:  # one for each run, and one between them
            return False
    return len(combs(test)) < 3


def combs(test: Line) -> list[Comb]:
    """A set as few arithmetic runs."""
    found = sets.exactly(*_live(test), (test.lo, test.hi)) if test.kept_as_runs else None
    if found is not None:
        pass
    elif test.bounded and test.hi - test.lo <= FAR and any(p.values.size > 1 for p in test.pieces):
        bits = test.all() != 0
        found = sets.simplest(bits, bits, test.lo)
    else:
        found = _joined([comb for piece in test.pieces for comb in _teeth(piece, test)])
    if len(found) > MAX_COMBS:
        raise NoFormError(f"a set of indices falls into {len(found)} runs")
    return found


def _live(test: Line) -> tuple[Ints, Ints]:
    """(first index, length) of each stretch of a set."""
    live = test.steps.value != 0
    return test.steps.begin[live], test.steps.lengths[live]


def _joined(found: list[Comb]) -> list[Comb]:
    """Runs without gaps that touch are one."""
    kept: list[Comb] = []
    for comb in found:
        last = kept[-1] if kept else None
        if last and last.solid and comb.solid and last.last + 1 == comb.first:
            kept[-1] = Comb(last.first, comb.last, open_left=last.open_left, open_right=comb.open_right)
        else:
            kept.append(comb)
    return kept


def _teeth(piece: Piece, test: Line) -> list[Comb]:
    """The runs of one piece: each run of its period, again and again."""
    period = piece.period
    left, right = piece.start == test.lo, piece.stop == test.hi
    stop = min(piece.stop, FAR)
    start = piece.start if piece.start > -INF else -(FAR // period) * period
    bits = piece.span(start, start + period) != 0
    if period == 1:
        return [Comb(start, stop - 1, open_left=left, open_right=right)] if bits[0] else []
    solid = period >= piece.length  # the period is over before it repeats
    found = []
    for first, width in zip(*(x.tolist() for x in sets.runs(bits)), strict=True):
        if solid:
            found.append(Comb(start + first, start + first + width - 1))
        else:
            found.append(Comb(start + first, stop - 1, period, width, left, right))
    return found
