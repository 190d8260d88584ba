"""Programs of sinks on the oracle: what they add to rows that several launches made, and their gradient."""

import numpy as np
import pytest

import weft
from weft.kernels.gpu.layout import Vector
from weft.kernels.gpu.oracle import run_program
from weft.kernels.gpu.programs.sinks import sink_gradient_program

from .checked import EXACT, Call, check, programs

MERGED = {
    "rows that two launches visit": (weft.bigbird(16), 150),
    "rows that none visits": (weft.blocks(64, [(0, 0), (2, 1)]), 190),
    "no row": (weft.nothing(), 70),
}


@pytest.mark.parametrize("name", MERGED)
def test_sinks_join_finished_rows(name):
    pattern, m = MERGED[name]
    call = Call(pattern, m, options={"sinks": True, "lse": True})
    forward, _ = programs(call)
    assert [launch.spec for launch in forward.launches if isinstance(launch.spec, str)] == ["join_sinks_bfloat16_16"]
    check(call)


def test_sinks_that_say_nothing():
    """Of -inf a row without keys stays empty, and others keep what they are."""
    for pattern in (weft.bigbird(16) & weft.causal(offset=-5), weft.causal(offset=-5)):
        call = Call(pattern, 150, heads=(2, 1), options={"sinks": True})
        forward, _ = programs(call)
        arrays = {x: call.arrays()[x] for x in ("q", "k", "v")}
        found = run_program(forward, arrays | {"sinks": np.full(2, -np.inf)})
        plain = Call(pattern, 150, heads=(2, 1))
        wanted = run_program(programs(plain)[0], arrays)
        assert (found["lse"][..., :5] == -np.inf).all()
        assert (found["out"][..., :5, :] == 0).all()
        for x in ("out", "lse"):
            np.testing.assert_allclose(found[x], wanted[x], **EXACT)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "shape", [(2, 3, 100), (1, 2, 4096 * 4), (2, 2, 4096 * 5 + 7), (3, 1, 0), (0, 2, 10), (1, 0, 10)]
)
def test_the_gradient_of_sinks(shape, dtype):
    """-(share of the sink in a row) * delta, by one program a head or several; rows without keys or sink have none."""
    random = np.random.default_rng(7)
    sinks, lse, delta = random.normal(size=shape[1]), random.normal(size=shape) + 2, random.normal(size=shape)
    lse = np.maximum(lse, sinks[:, None])
    empty = random.uniform(size=shape) < 0.1
    lse[empty], delta[empty] = -np.inf, np.nan
    program = sink_gradient_program(shape, Vector(dtype, (1,)))
    found = run_program(program, {"sinks": sinks, "lse": lse, "delta": delta})["dsinks"]
    share = np.where(empty, 0.0, np.exp(np.minimum(sinks[:, None] - np.where(empty, np.inf, lse), 0.0)))
    wanted = -(share * np.where(empty, 0.0, delta)).sum((0, 2))
    np.testing.assert_allclose(found, wanted, **EXACT)
