"""What times kernels: it launches what attention launches, compiles side by side, and says what cannot be compiled.

Times themselves need a GPU.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import torch
from triton.backends.compiler import GPUTarget

import weft
from weft.kernels.backend import Timing
from weft.planning.attention_plan import plan_attention
from weft.planning.tiling import Tiling
from weft.settings import interpreted
from weft.store import opened
from weft.target import GPU
from weft.torch import measure

from .fakes import PROBLEM

ROOT = Path(__file__).resolve().parents[2]
# Under Triton's interpreter, in a process of its own: what each direction's timed call writes is what backward returns.
LAUNCHED = """
import torch, weft
from weft.kernels.options import Modifiers
from weft.planning.attention_plan import plan_attention
from weft.planning.problem import Problem
from weft.planning.tiling import Tiling
from weft.target import GPU
from weft.torch import gpu, measure

problem = Problem(1, 2, 1, 64, 64, 16, 16, "float16", "cpu")
several = weft.causal() & (weft.window(left=5) | weft.strided(8))  # launches whose results are merged
for pattern in (weft.causal() & weft.window(left=20), weft.longformer(8, 4), several):
    plan = plan_attention(pattern, problem, GPU)
    subject = measure.Subject.of(plan)
    q, k, v, out, lse, dout, stats = (subject.tensors[x] for x in ("q", "k", "v", "out", "lse", "dout", "stats"))
    rows, how = (out, dout, lse, None), Modifiers(16**-0.5)
    dq, dk, dv, delta = gpu.backward((q, k, v), rows, plan, how, deterministic=False)
    torch.testing.assert_close(-stats[..., 8:11].float().sum(-1), delta, atol=4e-3, rtol=4e-3)
    meant = {"forward": [out, lse], "dq": [dq], "dkdv": [dk, dv]}
    for direction, expected in meant.items():
        fixed = plan_attention(pattern, problem, GPU, ((direction, Tiling(32, 32, 4, 2)),))
        call = subject.call(direction, fixed)
        untuned = [one.clone() for one in subject.call(direction, plan)()]
        call()  # nothing is left of it
        written = call()
        assert measure.alike(written, untuned)
        for one, x in zip(expected, written, strict=True):
            torch.testing.assert_close(x, one, atol=4e-3, rtol=4e-3)
    assert measure.alike(subject.call("gradients", plan)(), [dq, dk, dv])
print("alike")
"""


@pytest.mark.more
@pytest.mark.skipif(interpreted(), reason="it is started here")
def test_what_is_timed_is_what_attention_launches():
    settings = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", LAUNCHED], cwd=ROOT, env=settings, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "alike", done.stderr[-3000:]


@pytest.mark.skipif(interpreted(), reason="Triton interprets, and compiles nothing")
def test_compilers():
    plan = plan_attention(weft.causal(), PROBLEM, GPU, (("forward", Tiling(32, 32, 4, 2)),))
    good = measure.specs_of(plan, "forward")
    wrong = measure.specs_of(plan_attention(weft.causal(), PROBLEM, GPU, (("dq", Tiling(32, 32, 3, 2)),)), "dq")
    with measure.Compilers(GPUTarget("cuda", 90, 32)) as compilers:
        compilers.ask([*good, *wrong])
        assert compilers.reasons(good, time.monotonic()) == {}  # not ready yet
        found = compilers.reasons([*good, *wrong])
    assert [found[spec] for spec in good] == [""]
    assert all("Error" in found[spec] for spec in wrong)
    assert [entry.facts()["name"] for entry in opened().entries()] == [spec.name for spec in good]


class Compiled:
    """Compilers that are done at once. reasons: "" for all but what is named; specs that never come are left out."""

    def __init__(self, wrong, never):
        self.wrong, self.never, self.asked = wrong, never, []

    def ask(self, specs):
        self.asked += specs

    def reasons(self, specs, until):
        return {spec: "no room" if spec in self.wrong else "" for spec in specs if spec not in self.never}


def test_what_a_meter_answers(monkeypatch):
    tilings = [Tiling(64, 64, 4, stages) for stages in (1, 2, 3, 4)]
    plans = [plan_attention(weft.causal(), PROBLEM, GPU, (("dkdv", tiling),)) for tiling in tilings]
    specs = [measure.specs_of(plan, "dkdv", True) for plan in plans]
    right = [torch.tensor([[[1.0, -3.0, -torch.inf]]])]
    calls = {plan: lambda: right for plan in plans[:1]}

    class Subject:
        def call(self, direction, plan):
            if plan not in calls:
                raise RuntimeError("it cannot be loaded")
            return calls[plan]

    meter = measure.DeviceMeter.__new__(measure.DeviceMeter)
    meter.compilers, meter._subject = Compiled(specs[1], specs[2]), Subject()
    meter.plan, meter.meant = plans[0], {}
    timed = Timing(2.0, 1.0, 3.0)
    monkeypatch.setattr(
        measure, "timings_of", lambda found, rounds: [timed] * (found == [*calls.values()] and rounds == 4)
    )
    monkeypatch.setattr(measure.torch.cuda, "synchronize", lambda: None)
    found = meter.times("dkdv", plans, time.monotonic(), 4)
    assert found == [timed, "no room", None, "RuntimeError: it cannot be loaded"]
    meter.prepare("dkdv", plans)
    assert meter.compilers.asked == [spec for some in specs for spec in some]


def test_what_computes_something_else_is_not_measured(monkeypatch):
    """As kernels do that were translated wrongly. Nobody is compared with an untuned choice that cannot run."""
    monkeypatch.setattr(measure.torch.cuda, "synchronize", lambda: None)
    other = plan_attention(weft.causal(), PROBLEM, GPU, (("dq", Tiling(32, 32, 4, 2)),))
    usual = plan_attention(weft.causal(), PROBLEM, GPU)
    computed = {other: [torch.tensor([[[[1.0, 2.0]]]])]}

    class Subject:
        def call(self, direction, plan):
            return lambda: computed[plan]

    def answer():
        meter = measure.DeviceMeter.__new__(measure.DeviceMeter)
        meter._subject, meter.plan, meter.meant = Subject(), usual, {}
        return meter._call("dq", other)

    assert callable(answer())
    computed[usual] = [torch.tensor([[[[1.0, 2.01]]]])]
    assert callable(answer())
    computed[usual] = [torch.tensor([[[[1.0, 2.5]]]])]
    assert answer() == "it computes something else than the untuned choice"


@pytest.mark.parametrize(
    "found,same",
    [
        ([1.0, -3.0, -torch.inf], True),
        ([1.04, -3.04, -torch.inf], True),
        ([1.1, -3.0, -torch.inf], False),
        ([1.0, -3.0, torch.nan], False),
        ([1.0, torch.inf, -torch.inf], False),
        ([1.0, -3.0, 7.0], False),
    ],
)
def test_alike_in_lse(found, same):
    assert measure.alike([torch.tensor([[found]])], [torch.tensor([[[1.0, -3.0, -torch.inf]]])]) == same


@pytest.mark.parametrize("wrong", [lambda row: row / 2, lambda row: 0 * row, lambda row: row + torch.nan])
def test_alike_in_every_row(wrong):
    """A row far smaller than others is no less wrong. What rounding does is right."""
    meant = torch.randn(2, 3, 50, 16) * torch.logspace(0, -3, 50)[:, None]
    found = meant * (1 + torch.randn_like(meant) / 256)
    assert measure.alike([found], [meant])
    found[1, 2, 49] = wrong(found[1, 2, 49])
    assert not measure.alike([found], [meant])


def test_quartiles():
    timing = measure.timing_of([4.0, 1.0, 2.0, 5.0, 3.0])
    assert (timing.low, timing.seconds, timing.high) == (2.0, 3.0, 4.0)
