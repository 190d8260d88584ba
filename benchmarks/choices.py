"""What a plan chooses beside tilings, timed against the other way on the GPU at hand.

    PYTHONPATH=src python benchmarks/choices.py [--only TEXT] [--predict] [--record]

packs: heads that differ side by side, against unlike ones apart. rows: the forward by tiles, against by rows. one
kernel: the backward by two kernels, against by one. Each with the ratio that is predicted and the one that is measured,
over 1 where the second way is faster; an asterisk where a call takes it. Results of both ways are compared. Needs a
GPU with torch and Triton, and takes a minute; --predict needs numpy alone. --record: results/choices.csv.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import inf, nan
from typing import Any, NamedTuple
from unittest import mock

from planning import RESULTS, append

import weft
from weft.pattern.algebra import Pattern
from weft.planning.attention_plan import AttentionPlan, plan_attention
from weft.planning.families import base
from weft.planning.families.base import Pass
from weft.planning.families.one_kernel import OneKernel, tiling_of
from weft.planning.heads import Share, rows_of
from weft.planning.problem import Problem
from weft.target import GPU, Gpu

COLUMNS = (
    "date", "machine", "driver", "python", "torch", "triton", "commit", "what", "case", "direction", "taken",
    "predicted", "measured", "first_us", "second_us",
)  # fmt: skip
END = "bottom-right"


@dataclass(frozen=True)
class Case:
    """what: packs, rows or one kernel."""

    what: str
    name: str
    pattern: Pattern
    problem: Problem

    @property
    def directions(self) -> tuple[str, ...]:
        return {"packs": ("forward", "backward"), "rows": ("forward",), "one kernel": ("backward",)}[self.what]


class Row(NamedTuple):
    """taken: whether a call takes the second way. Ratios: the first way over the second; microseconds of both."""

    taken: bool
    predicted: float
    measured: float
    first_us: float
    second_us: float


def sized(n: int, d: int, *, m: int | None = None, heads: tuple[int, int] = (32, 32), batch: int = 1) -> Problem:
    return Problem(batch, *heads, n if m is None else m, n, d, d, "bfloat16", "cuda")


def cases() -> Iterator[Case]:
    short = weft.causal() & weft.window(left=64)
    unlike = {
        "strided | causal": ([weft.causal() & weft.strided(64)] * 16, [weft.causal()] * 16),
        "window 64 | causal": ([short] * 16, [weft.causal()] * 16),
        "window 128 | full": ([weft.window(64, 64)] * 24, [weft.full()] * 8),
        "documents | causal": ([weft.documents([100] * 81 + [92])] * 16, [weft.causal()] * 16),
    }
    for name, (some, others) in unlike.items():
        for d in (64, 128):
            yield Case("packs", f"{name}, D={d}", weft.per_head(some + others), sized(8192, d))
    for m, n, batch in (
        (1, 4096, 1),
        (1, 1 << 17, 1),
        (1, 1 << 17, 16),
        (16, 1 << 17, 1),
        (64, 1 << 17, 1),
        (128, 1 << 16, 1),
    ):
        problem = sized(n, 128, m=m, heads=(32, 8), batch=batch)
        yield Case("rows", f"causal, {batch} x {m} of {n}", weft.causal(align=END), problem)
    for n in (512, 2048, 8192):
        for d in (64, 128):
            window = weft.causal() & weft.window(left=1023)
            yield Case("one kernel", f"window 1023 of {n}, D={d}", window, sized(n, d, heads=(8, 8)))
    bigbird = weft.bigbird(64, 3, 1, 3)
    yield Case("one kernel", "bigbird of 512, D=64", bigbird, sized(512, 64, heads=(12, 12), batch=8))


# ---- the two ways ----------------------------------------------------------------------------------------------------
def planned(case: Case, gpu: Gpu) -> AttentionPlan:
    """The plan as a call has it."""
    plan = plan_attention(case.pattern, case.problem, gpu)
    _ = plan.by_rows, plan.queries, plan.transposed, plan.in_one
    return plan


def ways(case: Case, gpu: Gpu) -> tuple[AttentionPlan, AttentionPlan]:
    """The plan without and with what the case is about, and with nothing else of the three."""
    found = []
    for second in (False, True):
        with mock.patch.object(base, "WORTH", inf if second and case.what == "packs" else 1e-9):
            plan = planned(case, gpu)
        # what a plan has found out it keeps in its dictionary
        plan.__dict__["by_rows"] = plan.as_rows() if second and case.what == "rows" else None
        plan.__dict__["in_one"] = _in_one(plan) if second and case.what == "one kernel" else None
        found.append(plan)
    return found[0], found[1]


def _in_one(plan: AttentionPlan) -> tuple[Share, ...]:
    """Tiles of keys for the backward in one kernel, whatever it costs."""
    asked = plan.asked("dkdv")
    plans = asked.alike(tiling_of(plan.problem, asked.rank)).plans
    return tuple(replace(share, plan=one, pack=0) for share, one in zip(plan.forward, plans, strict=True))


def taken(case: Case, plan: AttentionPlan, direction: str) -> bool:
    """Whether a plan goes the second way."""
    if case.what == "rows":
        return plan.by_rows is not None
    if case.what == "one kernel":
        return plan.in_one is not None
    parts = ("forward",) if direction == "forward" else ("dq", "dkdv")
    return any(len(plan.candidate(part).tilings) > 1 for part in parts)


def seconds(plan: AttentionPlan, direction: str) -> float:
    """What a plan is predicted to take."""
    if direction == "forward":
        return (plan.by_rows or plan.candidate("forward")).cost.seconds
    if plan.in_one is None:
        return plan.candidate("dq").cost.seconds + plan.candidate("dkdv").cost.seconds
    asked = Pass("dkdv", rows_of(plan.in_one), plan.problem, plan.target)
    return OneKernel(asked.alike(plan.in_one[0].plan.tiling)).seconds


# ---- measuring -------------------------------------------------------------------------------------------------------
def calls(plans: Sequence[AttentionPlan], direction: str) -> tuple[list[Callable[[], Any]], list[Any]]:
    """(what is timed, what it returns), for each plan on the same tensors."""
    import torch

    from weft.kernels.options import Modifiers
    from weft.torch import gpu

    p = plans[0].problem
    how = Modifiers(p.d**-0.5)
    sizes = ((p.q_heads, p.m, p.d), (p.kv_heads, p.n, p.d), (p.kv_heads, p.n, p.dv), (p.q_heads, p.m, p.dv))
    *qkv, d_out = (torch.randn(p.batch, *size, device=p.device, dtype=getattr(torch, p.dtype)) for size in sizes)
    if direction == "forward":
        found = [lambda plan=plan: gpu.forward(tuple(qkv), plan, how) for plan in plans]
    else:
        out, lse = gpu.forward(tuple(qkv), plans[0], how)
        rows = (out, d_out, lse, None)
        found = [lambda plan=plan: gpu.backward(tuple(qkv), rows, plan, how, False) for plan in plans]
    return found, [call() for call in found]


def agree(some: Any, others: Any) -> bool:
    """Whether two results are the same but for the order of sums in bfloat16."""
    both = [(a.float(), b.float()) for a, b in zip(some, others, strict=True)]
    return all(float((a - b).abs().max()) <= 0.03 * float(b.abs().max()) for a, b in both)


def measure(case: Case, direction: str, plans: Sequence[AttentionPlan]) -> tuple[float, float]:
    """Seconds of both ways."""
    from weft.torch.measure import seconds_of

    found, results = calls(plans, direction)
    if not agree(*results):
        raise SystemExit(f"{case.what}, {case.name}, {direction}: the two ways give other results")
    first, second = seconds_of(found, rounds=4)
    return first, second


def row_of(case: Case, direction: str, gpu: Gpu, predict: bool) -> Row:
    plans = ways(case, gpu)
    predicted = [seconds(plan, direction) for plan in plans]
    measured = (nan, nan) if predict else measure(case, direction, plans)
    chosen = taken(case, planned(case, gpu), direction)
    return Row(chosen, predicted[0] / predicted[1], measured[0] / measured[1], *(1e6 * x for x in measured))


def origin() -> dict[str, str]:
    """The first columns of every row."""
    from weft.bench.origin import commit, machine

    found = machine("cuda") | {"date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"), "commit": commit()}
    return {name: found[name] for name in COLUMNS if name in found}


def main() -> None:
    parser = argparse.ArgumentParser(description="Choices beside tilings, predicted and measured")
    parser.add_argument("--only", default="", help="cases with this text in their name")
    parser.add_argument("--predict", action="store_true", help="measure nothing")
    parser.add_argument("--record", action="store_true", help="append to results/choices.csv")
    asked = parser.parse_args()
    gpu, rows = GPU, []
    if not asked.predict:
        from weft.torch.card import at_hand

        gpu = at_hand().gpu
    print(f"{'what':12s}{'case':34s}{'direction':10s}{'predicted':>10s}{'measured':>10s}{'us':>10s}{'us':>10s}")
    for case in (case for case in cases() if asked.only in f"{case.what} {case.name}"):
        for direction in case.directions:
            row = row_of(case, direction, gpu, asked.predict)
            print(f"{case.what:12s}{case.name:34s}{direction:10s}{row.predicted:10.2f}{row.measured:10.2f}"
                  f"{row.first_us:10.0f}{row.second_us:10.0f}{' *' * row.taken}", flush=True)  # fmt: skip
            said = {"what": case.what, "case": case.name, "direction": direction, "taken": row.taken}
            said |= {name: round(x, 3) for name, x in row._asdict().items() if name != "taken"}
            rows.append(said)
    if asked.record:
        append(RESULTS / "choices.csv", COLUMNS, [origin() | said for said in rows])


if __name__ == "__main__":
    main()
