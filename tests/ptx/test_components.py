"""Kernels of components as PTX: windows of a grid with a bias that learns, two batch rows in a program."""

import pytest
import torch
from tests.kernels.planned import problem_of
from tests.kernels.test_components import of_grid
from tests.triton.specs import card

from weft.kernels.options import Modifiers
from weft.planning.attention_plan import plan_attention
from weft.planning.families.components import Components
from weft.score.evaluate import Rule
from weft.settings import interpreted
from weft.torch import gpu

from .run import Way, emulated
from .threads import EAGER, LATE, REVERSED

TOLERANCE = 0.01  # of the largest number: bfloat16


WAYS = [(90, EAGER, 32), (90, LATE, 32), (90, REVERSED, 32), (80, LATE, 32), (90, EAGER, 96)]


@pytest.mark.more
@pytest.mark.skipif(interpreted(), reason="Triton interprets, and compiles nothing")
@pytest.mark.parametrize(("arch", "order", "width"), WAYS)
def test_a_bias_on_windows(arch, order, width, monkeypatch):
    monkeypatch.setattr(Components, "share", lambda self, problem, processors: 2)
    one = of_grid("long windows", (width, width), 3)
    plan = plan_attention(one.pattern, problem_of(one), card("sm_90"))
    score = one.bias(one.tables[0].detach().float())
    how = Modifiers(width**-0.5, rules=(Rule(score.expressions[0], score.tables, (True,)),))
    dout, dlse = one.seeds()
    with emulated(Way(arch, order)) as names:
        out, lse = gpu.forward(tuple(one.tensors), plan, how)
        rows = out, dout.to(out.dtype), lse, dlse.float()
        dq, dk, dv, _, dtable = gpu.backward(tuple(one.tensors), rows, plan, how, with_delta=False, deterministic=False)
    assert [name.split("_")[1] for name in names] == ["forward", "gradients"]
    found = {"out": out, "lse": lse, "dq": dq, "dk": dk, "dv": dv, "dtable0": dtable}
    for name, true in one.dense(torch.float64).items():
        assert (found[name].double() - true).abs().max() < TOLERANCE * true.abs().max(), name
