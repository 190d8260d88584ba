"""The rows of results files, ordered for a page: the latest of each kind, by machine, and what they say together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from weft.bench import rows
from weft.bench.rows import Row
from weft.testing.workloads import WORKLOADS

CEILINGS, PLANNERS = ("matmul", "copy"), ("weft-plan", "flex-mask")
YARDSTICKS = (*CEILINGS, *PLANNERS)


@dataclass(frozen=True)
class Machine:
    """The latest row of each (workload, direction, peer) on one machine, in the order of the workloads."""

    name: str
    file: Path
    latest: dict[tuple[str, str, str], Row]

    @property
    def slug(self) -> str:
        """For file names."""
        return rows.path_of(self.name, "cuda").stem

    def timed(self, workload: str, direction: str) -> dict[str, Row]:
        """Attention rows that may be compared, by peer, fastest first."""
        found = {
            peer: row for (w, way, peer), row in self.latest.items()
            if (w, way) == (workload, direction) and row["status"] == rows.OK and peer not in YARDSTICKS
        }  # fmt: skip
        return dict(sorted(found.items(), key=lambda item: float(item[1]["median_ms"])))

    def workloads(self, tag: str = "") -> list[str]:
        """Those that have rows."""
        have = {workload for workload, _, _ in self.latest}
        return [name for name, w in WORKLOADS.items() if name in have and (not tag or tag in w.tags)]

    def problems(self) -> Iterator[tuple[str, str]]:
        """(workload, direction) with at least one time, but for the scaling set."""
        for workload in self.workloads():
            for direction in ("fwd", "bwd"):
                if "scaling" not in WORKLOADS[workload].tags and self.timed(workload, direction):
                    yield workload, direction

    def scaling(self) -> Iterator[tuple[str, dict[str, Row]]]:
        """(workload, compared rows by "peer direction" and planners' by peer) of the scaling set, shortest first."""
        for workload in self.workloads("scaling"):
            found = {
                f"{peer} {way}".removesuffix(" any"): row for (name, way, peer), row in self.latest.items()
                if name == workload and row["status"] == rows.OK and peer not in CEILINGS
            }  # fmt: skip
            if found:
                yield workload, found

    def plans(self) -> list[tuple[str, float, float]]:
        """(workload, milliseconds of weft's plan, of a block mask) where both are known."""
        weft, block_mask = PLANNERS
        times = [
            (name, self.latest.get((name, "any", weft)), self.latest.get((name, "any", block_mask)))
            for name in self.workloads()
        ]
        return [
            (name, float(mine["median_ms"]), float(theirs["median_ms"])) for name, mine, theirs in times
            if mine and theirs and mine["status"] == theirs["status"] == rows.OK
        ]  # fmt: skip

    def ceiling(self, peer: str, column: str) -> float | None:
        """The median of a yardstick over all workloads."""
        found = sorted(
            value for (_, _, name), row in self.latest.items()
            if name == peer and row["status"] == rows.OK and (value := rows.number(row, column))
        )  # fmt: skip
        return found[len(found) // 2] if found else None

    def comparison(self, workload: str, direction: str) -> Comparison:
        """weft's fastest backend and its fastest rival."""
        timed = self.timed(workload, direction)
        mine = next((row for peer, row in timed.items() if is_weft(peer)), None)
        rival = next((row for peer, row in timed.items() if not is_weft(peer)), None)
        return Comparison(workload, direction, mine, rival)


@dataclass(frozen=True)
class Comparison:
    """weft beside the fastest other on one problem."""

    workload: str
    direction: str
    mine: Row | None
    rival: Row | None

    @property
    def ratio(self) -> float | None:
        """How many times as fast weft is."""
        if self.mine is None or self.rival is None:
            return None
        return float(self.rival["median_ms"]) / float(self.mine["median_ms"])

    @property
    def one_run(self) -> bool:
        """Whether both rows are of one commit, and so of one set of runs."""
        return bool(self.mine and self.rival and self.mine["commit"] == self.rival["commit"])


def is_weft(peer: str) -> bool:
    """Whether a peer is one of weft's backends."""
    return peer.startswith("weft-") and peer not in YARDSTICKS


def _on_page(row: Row) -> Row:
    """A row whose texts end no cell of a table and begin no element of a page."""
    return {column: text.replace("|", "/").replace("<", "&lt;") for column, text in row.items()}


def load(results: Path) -> list[Machine]:
    """Every machine of every file of this benchmark in a folder; files of other scripts are passed over."""
    machines: dict[str, Machine] = {}
    for path in sorted(results.glob("*.csv")):
        if not rows.is_ours(path):
            continue
        for row in (_on_page(row) for row in rows.read(path) if row["workload"] in WORKLOADS):  # not the reduced ones
            machine = machines.setdefault(row["machine"], Machine(row["machine"], path, {}))
            machine.latest[row["workload"], row["direction"], row["peer"]] = row
    return sorted(machines.values(), key=lambda machine: (machine.file.stem == "bench-cpu", machine.name))
