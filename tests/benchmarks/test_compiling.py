"""The benchmark of a first call: which kernels it takes for a call's."""

import pytest

pytest.importorskip("triton")

from benchmarks import compiling

from weft.kernels.gpu.programs.kernels import kernels_of
from weft.planning.attention_plan import plan_attention
from weft.settings import interpreted
from weft.target import GPU
from weft.testing.workloads import WORKLOADS


@pytest.mark.skipif(interpreted(), reason="Triton interprets, and compiles nothing")
@pytest.mark.parametrize("name", compiling.NAMES)
def test_its_kernels_are_a_calls(name):
    """But for sinks, of which it knows nothing: they change the forward and add a kernel."""
    workload = WORKLOADS[name]
    plan = plan_attention(workload.make(), workload.problem("cuda"), GPU)
    found = [one.name for one in compiling.sources_of(name, GPU.architecture)]
    assert found == [one.name for one in kernels_of(plan)]
