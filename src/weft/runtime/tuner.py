"""The tuner: measures on the card at hand what the planner predicts best, and keeps what wins.

Two stages a direction, as in STOF (arXiv 2506.06095). First structure: the candidate of each tile shape (rows x cols x
warps) that is predicted best, of the best few shapes. Then parameters (stages, registers, loops): candidates are drawn
by chance, the likelier the better they promise to be, until a budget is spent. At last the best take turns with the
untuned choice, so that neither luck nor drift decides. The winner has three quarters of its calls below three quarters
of the untuned choice's.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Literal

from weft.errors import OptionError, UnsupportedError
from weft.kernels.backend import Backend, Card, Meter, Timing
from weft.pattern.algebra import Pattern
from weft.planning.attention_plan import AttentionPlan, plan_attention
from weft.planning.candidates import listed
from weft.planning.problem import Problem
from weft.planning.tiling import DIRECTIONS, OF_GRADIENTS, Direction, Tiling
from weft.runtime import evidence
from weft.runtime.rows import LONGEST, Decision, Measured, Row
from weft.runtime.together import Together, in_force, settled
from weft.store import opened

SHAPES = 6  # measured in the first stage
BATCH = 8  # drawn at a time in the second
FINALISTS = 3
ROUNDS = 4  # of the finalists
SHARPNESS = 8  # a candidate that promises to be 10 % slower is drawn half as often

Stage = Literal["structure", "parameters", "final"]
Show = Callable[[Direction, Stage, list[Measured]], None]


@dataclass(frozen=True)
class Budget:
    """seconds: of all directions together. measurements: of each direction, the finalists' not counted."""

    seconds: float = 60.0
    measurements: int = 200


@dataclass(frozen=True)
class Tuned:
    """What was found in one direction. predicted: seconds of every candidate; measured: the last word on each.

    untuned: what a call computes with if nothing is known. winner: None if that one stays.
    """

    direction: Direction
    predicted: Mapping[Tiling, float]
    untuned: Tiling
    measured: Mapping[Tiling, Measured]
    winner: Tiling | None

    @property
    def chosen(self) -> Tiling:
        """What a call computes with from now on."""
        return self.winner or self.untuned

    @property
    def gain(self) -> float:
        """How many times faster than untuned: 1 where that one stays, inf where it cannot run."""
        before, after = self.measured[self.untuned].timing, self.measured[self.chosen].timing
        if self.winner is None or after is None:
            return 1.0
        return before.seconds / after.seconds if before else inf


@dataclass(frozen=True)
class Report:
    """directions: those that were measured at all. kept: whether the store has all of it. by_rows: whether the forward
    was asked for and goes by rows, which have no tilings. together: of gradients that an untuned call makes in one
    kernel or walk whether it goes on to, whoever won in either direction; else None.
    """

    card: Card
    directions: tuple[Tuned, ...]
    interrupted: bool
    kept: bool
    by_rows: bool = False
    together: Together | None = None


def tune(
    pattern: Pattern,
    problem: Problem,
    backend: Backend,
    budget: Budget = Budget(),
    directions: tuple[Direction, ...] = DIRECTIONS,
    show: Show = lambda direction, stage, rows: None,
) -> Report:
    """Measure the kernels of one problem and keep the evidence; calls of other processes find it from then on.

    What was measured before, with the same versions, counts. Interrupted (KeyboardInterrupt), it decides by what it
    has, but of gradients that an untuned call makes at once (`weft.runtime.together`). Kernels are timed as for plain
    attention on contiguous tensors, with any order of sums in dK and dV.
    """
    asked = f"tune {pattern} for {problem}"
    card = card_of(asked, problem, backend)
    plan = plan_attention(pattern, problem, card.gpu)
    if not plan.nnz:
        raise OptionError(asked, "no query sees a key, so no kernel has work", "tune a problem that is computed")
    by_rows = "forward" in directions and plan.by_rows is not None
    if by_rows:
        directions = tuple(one for one in directions if one != "forward")
    if not directions:
        raise OptionError(asked, "its forward goes by rows, which have no tilings", "tune its backward: dq and dkdv")
    notes = _Notes(pattern, problem, backend, card)
    searches = [Search(direction, plan, notes.known, show) for direction in directions]
    at_once = [one for one in directions if one in OF_GRADIENTS and plan.gradients_together]
    together = Together() if at_once else None
    until, found, interrupted = time.monotonic() + budget.seconds, [], False
    try:
        with backend.meter(plan) as meter:
            for search in searches:
                meter.prepare(search.direction, search.plans(search.structures()))
            for left, search in zip(range(len(searches), 0, -1), searches, strict=True):
                now = time.monotonic()
                try:
                    for rows in search.run(meter, budget.measurements, now + (until - now) / left):
                        notes.add(rows)
                finally:  # whatever ends it, what is known by then decides
                    ends = search.decide()
                    notes.add([Decision(one.direction, one.winner) for one in ends if one.direction not in at_once])
                    found += ends
            if at_once:
                chosen = {one.direction: one.chosen for one in found if one.direction in at_once}
                together = settled(plan, in_force(notes.known) | chosen, meter, ROUNDS)
                notes.add(together.decisions(chosen))
    except KeyboardInterrupt:
        interrupted = True
    return Report(card, tuple(found), interrupted, notes.kept, by_rows, together)


def card_of(asked: str, problem: Problem, backend: Backend) -> Card:
    """The card that a problem can be tuned on; raises UnsupportedError where there is none."""
    card = backend.card(problem.device)
    if card is not None:
        return card
    if problem.device == "cpu":
        wrong, cure = "a CPU's plan offers no tilings: there is nothing to tune", "tune on a machine with a GPU"
    else:
        wrong, cure = "there is no GPU at hand to measure on", "run it on the machine whose GPU is meant (weft doctor)"
    raise UnsupportedError(asked, wrong, cure)


class _Notes:
    """The evidence of one problem: what is known, and where more goes."""

    def __init__(self, pattern: Pattern, problem: Problem, backend: Backend, card: Card) -> None:
        self.subject, self.name = evidence.Subject.of(pattern, problem, card), evidence.name_of(pattern, problem)
        self.versions, self.kept = backend.versions(), True
        if opened().root is None:
            raise OptionError(
                f"tune {pattern} for {problem}", "nothing is kept between processes (WEFT_CACHE_DIR=off)",
                "name a directory there, or leave it unset",
            )  # fmt: skip
        self.known = evidence.rows_of(self.subject, self.versions)

    def add(self, rows: list[Measured] | list[Decision]) -> None:
        if rows:
            self.kept &= evidence.record(self.subject, self.name, rows, self.versions)


# ---- one direction ---------------------------------------------------------------------------------------------------
class Search:
    """The two stages and the final of one direction.

    predicted: seconds of every candidate, the best first. measured: the last measurement of each. late: candidates
    that were not compiled in time, and are not waited for again. final: what was measured last, taking turns.
    """

    def __init__(self, direction: Direction, plan: AttentionPlan, known: list[Row], show: Show) -> None:
        self.direction, self.plan, self.show = direction, plan, show
        self.untuned, self.predicted = candidates(direction, plan)
        rows = [row for row in known if isinstance(row, Measured) and row.direction == direction]
        self.measured = {row.tiling: row for row in rows if row.tiling in self.predicted}
        self.late: set[Tiling] = set()
        self.final: list[Measured] = []
        self.dice = random.Random(f"{plan.pattern} {plan.problem} {direction}")

    def run(self, meter: Meter, most: int, until: float) -> Iterator[list[Measured]]:
        """Yields what is measured, as it is."""
        yield self._measure(meter, "structure", self._new([self.untuned]), inf)
        spent = 1
        while spent < most and time.monotonic() < until:
            stage: Stage = "structure"
            tilings = self._new(self.structures())
            if not tilings:
                stage, tilings = "parameters", draw(self.predicted, self.measured, self.late, BATCH, self.dice)
            if not tilings:
                break
            tilings = tilings[: most - spent]
            spent += len(tilings)
            yield self._measure(meter, stage, tilings, until)
        self.final = self._measure(meter, "final", self.finalists(), inf, ROUNDS)
        yield self.final

    def structures(self) -> list[Tiling]:
        """The untuned choice, and the candidates that stand for the best shapes: the best of each that may yet run."""
        failed = {tiling for tiling, row in self.measured.items() if row.timing is None} | self.late
        able = {tiling: seconds for tiling, seconds in self.predicted.items() if tiling not in failed}
        return list(dict.fromkeys([self.untuned, *shapes(able, SHAPES)]))

    def plans(self, tilings: list[Tiling]) -> list[AttentionPlan]:
        """The whole plan under each tiling of this direction; the untuned one as it is, which may have several."""
        asked = [() if one == self.untuned else ((self.direction, one),) for one in tilings]
        return [plan_attention(self.plan.pattern, self.plan.problem, self.plan.target, fixed) for fixed in asked]

    def _new(self, tilings: list[Tiling]) -> list[Tiling]:
        return [tiling for tiling in tilings if tiling not in self.measured]

    def _measure(
        self, meter: Meter, stage: Stage, tilings: list[Tiling], until: float, rounds: int = 2
    ) -> list[Measured]:
        """Rows of those that were ready in time."""
        if not tilings:
            return []
        rows = []
        for tiling, one in zip(tilings, meter.times(self.direction, self.plans(tilings), until, rounds), strict=True):
            if one is None:
                self.late.add(tiling)
                continue
            timing, why = (None, " ".join(one.split())[:LONGEST]) if isinstance(one, str) else (one, "")
            rows.append(Measured(self.direction, tiling, self.predicted[tiling], timing, why))
        self.measured |= {row.tiling: row for row in rows}
        self.show(self.direction, stage, rows)
        return rows

    def finalists(self) -> list[Tiling]:
        """The untuned choice and the fastest of the others; nobody where there is nothing to compare."""
        others = [row for row in timed(self.measured.values()) if row.tiling != self.untuned][:FINALISTS]
        return [self.untuned, *(row.tiling for row in others)] if others else []

    def decide(self) -> list[Tuned]:
        """The fastest, if it is faster than the untuned choice by more than the noise; nothing without the latter."""
        if self.untuned not in self.measured:
            return []
        best, usual = timed(self.final or self.measured.values())[:1], self.measured[self.untuned].timing
        faster = bool(best) and _timing(best[0]).clearly_below(usual)
        winner = best[0].tiling if faster else None
        return [Tuned(self.direction, self.predicted, self.untuned, dict(self.measured), winner)]


def timed(rows: Iterable[Measured]) -> list[Measured]:
    """Those that have a time, the fastest first."""
    return sorted((row for row in rows if row.timing), key=lambda row: _timing(row).seconds)


def _timing(row: Measured) -> Timing:
    """Of a row that has one."""
    assert row.timing is not None
    return row.timing


def candidates(direction: Direction, plan: AttentionPlan) -> tuple[Tiling, dict[Tiling, float]]:
    """(what a call computes with if nothing is known, predicted seconds of all candidates, the best first). Of a plan
    that has several tilings the first one stands for all.
    """
    asked, untuned = plan.asked(direction), plan.towards(direction)[0].plan.tiling
    assert untuned is not None
    order = {one: asked.alike(one).seconds for one in listed(asked, untuned)}
    order[untuned] = plan.candidate(direction).seconds
    return untuned, dict(sorted(order.items(), key=lambda one: one[1]))


def shape(tiling: Tiling) -> tuple[int, int, int]:
    """What the first stage tells apart."""
    return tiling.rows, tiling.cols, tiling.warps


def shapes(predicted: Mapping[Tiling, float], count: int) -> list[Tiling]:
    """For each of the best shapes the candidate that is predicted best."""
    best: dict[tuple[int, int, int], Tiling] = {}
    for tiling in sorted(predicted, key=predicted.__getitem__):
        best.setdefault(shape(tiling), tiling)
    return list(best.values())[:count]


def draw(
    predicted: Mapping[Tiling, float], measured: Mapping[Tiling, Measured], late: set[Tiling], count: int,
    dice: random.Random,
) -> list[Tiling]:  # fmt: skip
    """Candidates of measured shapes that were not measured, at most `count`, by chance weighted with their reward.

    A candidate promises its prediction, corrected by how the best of its shape came out. Its reward is what that is
    worth beside the best time of all.
    """
    best: dict[tuple[int, int, int], Measured] = {}
    for row in timed(measured.values()):
        best.setdefault(shape(row.tiling), row)
    rewards = {}
    for tiling, seconds in predicted.items():
        mine = best.get(shape(tiling))
        if mine is not None and tiling not in measured and tiling not in late:
            promise = _timing(mine).seconds * seconds / predicted[mine.tiling]
            rewards[tiling] = promise**-SHARPNESS
    drawn: list[Tiling] = []
    while rewards and len(drawn) < count:
        (one,) = dice.choices([*rewards], [*rewards.values()])
        drawn.append(one)
        del rewards[one]
    return drawn
