"""Rows of measured candidates as a table that can be committed, and what predictions make of them."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np

from prediction.measure import Row, works_of
from prediction.problems import Case
from weft.planning.choose import offered
from weft.planning.cost import Cost, converting, cost
from weft.planning.families.base import Pass
from weft.planning.tiling import DIRECTIONS, Direction, Tiling
from weft.target import Gpu

COLUMNS = ("problem", "direction", *(field.name for field in fields(Tiling)), "microseconds")


def write(path: Path, rows: Iterable[Row]) -> None:
    """A CSV file, sorted as the rows come; what could not be compiled or loaded has no time."""
    with path.open("w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(COLUMNS)
        for row in rows:
            time = "" if row.seconds is None else f"{row.seconds * 1e6:.2f}"
            out.writerow([row.case.text, row.direction, *map(int, astuple(row.tiling)), time])


def read(path: Path) -> Iterator[Row]:
    """Back from `write`."""
    with path.open(newline="") as file:
        for line in csv.DictReader(file):
            numbers = {name: int(line.get(name, 0)) for name in COLUMNS[2:-1]}  # tables from before some are read too
            tiling = Tiling(**{**numbers, "apart": bool(numbers["apart"])})
            seconds = float(line["microseconds"]) * 1e-6 if line["microseconds"] else None
            way: Direction = next(one for one in DIRECTIONS if one == line["direction"])
            yield Row(Case.of(line["problem"]), way, tiling, seconds)


@dataclass(frozen=True)
class Judged:
    """Candidates of one problem and direction: predicted and measured seconds; offered: which a call chooses from."""

    case: Case
    direction: str
    predicted: np.ndarray
    measured: np.ndarray
    offered: np.ndarray
    chosen: int  # what a call takes without tuning
    costs: tuple[Cost, ...] = ()

    @property
    def errors(self) -> np.ndarray:
        """Relative, without sign."""
        return np.abs(self.predicted / self.measured - 1)

    @property
    def correlation(self) -> float:
        """Spearman's, of the ranks of candidates."""
        from scipy.stats import spearmanr

        return float(spearmanr(self.predicted, self.measured).statistic)

    @property
    def regret(self) -> float:
        """What the untuned choice takes, of the best candidate's time."""
        return float(self.measured[self.chosen] / self.measured.min())


def judged(rows: Iterable[Row], gpu: Gpu) -> list[Judged]:
    """Forward, dQ, dK and dV; and the backward whole: the first candidate of one kernel with the first of the other."""
    groups: dict[Case, dict[Direction, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row.seconds is not None:
            groups[row.case][row.direction].append(row)
    found = []
    for case, directions in groups.items():
        parts = {way: _judged(case, way, some, gpu) for way, some in directions.items()}
        found += list(parts.values())
        if {"dq", "dkdv"} <= parts.keys():
            found.append(_together(case, parts["dq"], parts["dkdv"]))
    return found


def _judged(case: Case, way: Direction, rows: list[Row], gpu: Gpu) -> Judged:
    costs = tuple(cost(works_of(row, gpu), way, case.problem, row.tiling, gpu) for row in rows)
    acsr = case.make().acsr(case.tokens, case.tokens)
    menu = offered(Pass(way, [(acsr, 1)], case.problem, gpu))
    measured = np.array([row.seconds for row in rows])
    # a choice counts the conversion of sums too, which follows the kernels that were timed
    after = [converting(works_of(row, gpu), way, case.problem, gpu) for row in rows]
    taken = min((i for i, row in enumerate(rows) if row.tiling in menu), key=lambda i: costs[i].seconds + after[i])
    return Judged(case, way, np.array([one.seconds for one in costs]), measured,
                  np.array([row.tiling in menu for row in rows]), taken, costs)  # fmt: skip


def _together(case: Case, dq: Judged, dkdv: Judged) -> Judged:
    """Candidates in the order in which they were drawn; the offered ones first, each with each."""
    pairs = [(i, j) for i in np.flatnonzero(dq.offered) for j in np.flatnonzero(dkdv.offered)]
    rest = zip(np.flatnonzero(~dq.offered), np.flatnonzero(~dkdv.offered), strict=False)
    pairs, offered = [*pairs, *rest], len(pairs)
    sums = [np.array([getattr(dq, x)[i] + getattr(dkdv, x)[j] for i, j in pairs]) for x in ("predicted", "measured")]
    return Judged(case, "backward", *sums, np.arange(len(pairs)) < offered,
                  pairs.index((dq.chosen, dkdv.chosen)))  # fmt: skip
