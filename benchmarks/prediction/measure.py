"""Rows of measured kernels: for each case, direction and tiling the seconds on the GPU at hand."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from prediction.problems import Case
from weft.planning.attention_plan import AttentionPlan, plan_attention
from weft.planning.choose import offered
from weft.planning.families.base import Pass
from weft.planning.families.hopper import SUMMED, no_sums
from weft.planning.families.tile import legal
from weft.planning.heads import count_heads
from weft.planning.tiling import DIRECTIONS, Direction, Tiling
from weft.planning.work import Work, slots_of, works
from weft.target import Gpu

MEASURED = 30  # tilings of a direction at most


@dataclass(frozen=True)
class Row:
    """One kernel, or the few that make up one direction. seconds: None where it cannot be compiled or loaded."""

    case: Case
    direction: Direction
    tiling: Tiling
    seconds: float | None

    @property
    def text(self) -> str:
        """As a line of JSON."""
        said = {"case": self.case.text, "direction": self.direction, **asdict(self.tiling), "seconds": self.seconds}
        return json.dumps(said)

    @staticmethod
    def of(text: str) -> Row:
        """Back from `text`."""
        said: dict[str, Any] = json.loads(text)
        case, direction, seconds = (said.pop(name) for name in ("case", "direction", "seconds"))
        return Row(Case.of(case), direction, Tiling(**said), seconds)


def read(path: Path) -> list[Row]:
    """The rows of a file."""
    return [Row.of(line) for line in path.read_text().splitlines()]


def candidates(case: Case, gpu: Gpu, summed: bool = False) -> dict[Direction, list[Tiling]]:
    """What is measured of a case: what is offered and, drawn by chance, as many others as MEASURED leaves. summed: all
    gradients in one walk by warp groups, and nothing else.
    """
    if summed:
        asked = plan_attention(case.make(), case.problem, gpu).asked("dkdv")
        return {"dkdv": [] if no_sums(asked) else [SUMMED]}
    pattern, problem = case.make(), case.problem
    plan = plan_attention(pattern, problem, gpu)
    found = {}
    for direction in DIRECTIONS:
        rows = [(share.plan.acsr, 1) for share in plan.towards(direction)]
        asked = Pass(direction, rows, problem, gpu)
        menu = offered(asked)
        others = [tiling for tiling in legal(direction, problem, asked.rank, gpu) if tiling not in menu]
        dice = random.Random(f"{case.text} {direction}")
        found[direction] = [*menu, *dice.sample(others, min(len(others), MEASURED - len(menu)))]
    return found


def measure(
    cases: Iterable[Case], gpu: Gpu, show: Callable[[str], None], ways: Sequence[Direction] = DIRECTIONS,
    summed: bool = False,
) -> Iterator[Row]:  # fmt: skip
    """All rows, case by case, after all kernels were compiled; summed: see `candidates`."""
    from weft.torch import measure as device

    wanted = {case: {way: some for way, some in candidates(case, gpu, summed).items() if way in ways} for case in cases}
    plans = {}
    specs = {}
    for case, directions in wanted.items():
        for direction, tilings in directions.items():
            for tiling in tilings:
                plan = plan_attention(case.make(), case.problem, gpu, ((direction, tiling),))
                plans[case, direction, tiling] = plan
                specs[case, direction, tiling] = () if summed else device.specs_of(plan, direction, direction == "dkdv")
    show(f"{len(plans)} kernels to time, of {len({s for some in specs.values() for s in some})} specs")
    failed = device.compile_all(spec for some in specs.values() for spec in some)
    for spec, why in failed.items():
        show(f"cannot be compiled: {spec.name}: {why[:200]}")
    for case, directions in wanted.items():
        subject = device.Subject.of(plan_attention(case.make(), case.problem, gpu))
        for direction, tilings in directions.items():
            good = [t for t in tilings if not any(spec in failed for spec in specs[case, direction, t])]
            yield from _rows(case, direction, subject, {t: plans[case, direction, t] for t in good})
        show(case.text)


def _rows(case: Case, direction: Direction, subject: Any, plans: dict[Tiling, AttentionPlan]) -> Iterator[Row]:
    from weft.torch import measure as device

    calls = {}
    for tiling, plan in plans.items():
        try:
            call = subject.call(direction, plan)
            call()
            calls[tiling] = call
        except Exception:  # too much shared memory: Triton says so when the kernel is loaded
            yield Row(case, direction, tiling, None)
    for tiling, seconds in zip(calls, device.seconds_of(list(calls.values())), strict=True):
        yield Row(case, direction, tiling, seconds)


def works_of(row: Row, gpu: Gpu) -> tuple[Work, ...]:
    """What the kernels of a row do."""
    return _works(row.case, row.direction, row.tiling.rows, row.tiling.cols, gpu)


@cache
def _works(case: Case, direction: Direction, rows: int, cols: int, gpu: Gpu) -> tuple[Work, ...]:
    plan = plan_attention(case.make(), case.problem, gpu, ((direction, Tiling(rows, cols, 4, 2)),))
    shares = [(share.plan, count_heads(share.heads)) for share in plan.towards(direction)]
    return works(shares, slots_of(gpu), direction == "dkdv")
