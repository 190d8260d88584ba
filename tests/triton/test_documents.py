"""The kernel that writes tables of documents, compiled without a GPU: it fits each card, and spills nothing."""

import pytest
from tests.gpu.test_oracle_documents import MORE, problem_of, programs
from tests.tiers import sample

from weft.kernels.gpu.compile import compiler
from weft.settings import interpreted

from .resources import TARGETS, resources

pytestmark = pytest.mark.skipif(interpreted(), reason="Triton interprets, and compiles nothing")


@pytest.mark.parametrize("target", sample(TARGETS, "sm_90"))
@pytest.mark.parametrize("direction", sample(["forward", "dkdv"], "forward"))
def test_it_compiles(direction, target):
    program = programs(MORE["causal window"], 70, problem_of(9000, 9000))[direction != "forward"]
    launch = next(one for one in program.launches if f"{direction}_tables_0" in one.written)
    compiled = compiler.compile_for(launch.kernel, TARGETS[target])
    assert resources(compiled, target).spilled == 0
