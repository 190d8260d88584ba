"""The kernel that writes tables of documents, compiled without a GPU: it fits each card, and spills nothing."""

from dataclasses import replace

import pytest
from tests.gpu.test_oracle_document_blocks import gradients_of
from tests.gpu.test_oracle_document_blocks import program_of as of_groups
from tests.gpu.test_oracle_documents import MORE, problem_of, programs
from tests.tiers import sample

import weft
from weft.kernels.gpu.compile import compiler
from weft.kernels.gpu.compile.load import source_of
from weft.kernels.gpu.documents.spec import known
from weft.kernels.gpu.layout import Layout, Options
from weft.kernels.gpu.programs.documents import Documents, PagedKeys, documents_forward_program
from weft.planning.attention_plan import plan_attention
from weft.planning.problem import Problem
from weft.planning.tiling import DIRECTIONS
from weft.settings import interpreted
from weft.target import GPU

from .resources import TARGETS, resources

pytestmark = pytest.mark.skipif(interpreted(), reason="Triton interprets, and compiles nothing")


@pytest.mark.parametrize("target", sample(TARGETS, "sm_90"))
@pytest.mark.parametrize("direction", sample(["forward", "dkdv"], "forward"))
def test_it_compiles(direction, target):
    program = programs(MORE["causal window"], 70, problem_of(9000, 9000))[direction != "forward"]
    launch = next(one for one in program.launches if f"{direction}_tables_0" in one.written)
    compiled = compiler.compile_for(launch.kernel, TARGETS[target])
    assert resources(compiled, target).spilled == 0


@pytest.mark.parametrize("program", sample([of_groups, gradients_of], of_groups))
def test_tables_of_warp_groups(program):
    """Both kernels of tables spill nothing, and what reads them is as the kernel that reads the host's tables."""
    launches = program(weft.causal(align="bottom-right"), 64, 65536).launches
    *made, last = [launch for launch in launches if not isinstance(launch.spec, str)]
    assert [launch.pdl for launch in made[:2]] == [False, True]
    for launch in made[:2]:
        assert resources(compiler.compile_for(launch.kernel, TARGETS["sm_90"]), "sm_90").spilled == 0
    alike = source_of(replace(last.spec, counted=False))
    found, beside = (resources(compiler.compile_for(x, TARGETS["sm_90"]), "sm_90") for x in (last.kernel, alike))
    assert replace(found, spilled=0, inside=0) == replace(beside, spilled=0, inside=0)
    # forwards may begin before token 0, gradients clear rows of others
    assert found.spilled <= beside.spilled + 16 and found.inside <= beside.inside + 2


@pytest.mark.more
@pytest.mark.parametrize("page", [16, 48])
@pytest.mark.parametrize("width", [64, 128])
def test_kernels_of_pages(width, page):
    """The forward whose keys lie in pages keeps its registers."""
    strides = ((page * 8 * width, width, 8 * width, 1),) * 2
    lie = PagedKeys(5000, page, 64, 64, page, strides)
    problem = Problem(1, 32, 8, 8192, lie.room, width, width, "bfloat16", "cuda")
    plan = plan_attention(weft.causal(align="bottom-right"), problem, GPU)
    tilings = {one: plan.unspecialised(one)[0].plan.tiling for one in DIRECTIONS}
    documents = Documents(64, known(plan.pattern, 65536), tilings, lie)
    layout = Layout(((8192 * 32 * width, width, 32 * width, 1), *strides), True)
    program = documents_forward_program(plan, layout, Options(0.125), documents)
    for launch in program.launches:
        assert resources(compiler.compile_for(launch.kernel, TARGETS["sm_90"]), "sm_90").spilled == 0
