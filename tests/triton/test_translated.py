"""What LLVM and ptxas are known to make of a right source, recognised and refused; no GPU is needed."""

from dataclasses import replace
from unittest import mock

import pytest
import triton

import weft
from weft.errors import UnsupportedKernel
from weft.kernels.triton.configure import specs_of
from weft.kernels.triton.load import source_of
from weft.kernels.triton.source import compile_for
from weft.kernels.triton.translated import overwritten, spoiled
from weft.planning.attention_plan import plan_attention
from weft.planning.tiling import Tiling
from weft.settings import interpreted
from weft.target import GPU

from .resources import TARGETS
from .specs import CALLS, specs_towards, square

pytestmark = pytest.mark.skipif(interpreted(), reason="Triton interprets, and compiles nothing")

GRID_AND_TOKEN = square(weft.neighborhood((15, 22), (5, 7)) | weft.global_tokens([99]), length=330)


# ---- LLVM ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("factor, wrong", [(2147483648, True), (2, False)])
def test_what_llvm_spoils_is_recognised(factor, wrong):
    """Of a kernel that was wrong: tid & 3, doubled, beside (tid >> 2) << 31, of which more than 32 bits were kept."""
    line = f"mul.wide.u32 \t%rd200, %r12, {factor};"
    found = spoiled(f"shl.b64 \t%rd202, %rd201, 33;\n{line}\nor.b64 \t%rd203, %rd200, %rd202;")
    assert found == (line,) * wrong


def test_what_llvm_spoiled_is_refused():
    spec = specs_towards(CALLS["window"], "forward")[0]
    made = mock.Mock(asm={"ptx": "mul.wide.u32 \t%rd200, %r12, 2147483648;"})
    with (
        mock.patch.object(triton, "compile", return_value=made),
        pytest.raises(UnsupportedKernel, match="wrongly"),
    ):
        compile_for(source_of(spec), TARGETS["sm_90"])


# ---- ptxas -----------------------------------------------------------------------------------------------------------
# Of a kernel that was wrong: keys in R156 to R159, written before the loop, and by dS in it.
LOOP = """
        /*0100*/                   F2FP.BF16.F32.PACK_AB R156, R25, R24 ;
        /*0110*/                   CS2R R158, SRZ ;
.L_x_5:
        /*0120*/                   LDSM.16.M88.4 R152, [R171+UR13+0xf800] ;
        /*0130*/                   WARPGROUP.ARRIVE ;
        /*0140*/                   HGMMA.64x64x16.F32.BF16 R24, R152, gdesc[UR20], RZ, !UPT, gsb0 ;
        /*0150*/                   HGMMA.64x64x16.F32.BF16 R24, R156, gdesc[UR12], R24, gsb0 ;
        /*0160*/                   WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
        /*0170*/              @!P1 BRA P0, `(.L_x_4) ;
        /*0180*/                   FSETP.GEU.AND P1, PT, R156, RZ, PT ;
.L_x_4:
{inside}
        /*0200*/               @P0 BRA `(.L_x_5) ;
        /*0210*/                   EXIT ;
"""
KEPT = [
    "",
    "        /*0190*/                   STS [R156], R155 ;",
    "        /*0190*/                   F2FP.BF16.F32.PACK_AB R160, R40, R39 ;",
    "        /*0190*/                   LDSM.16.M88.4 R152, [R171] ;",
]
LOST = [
    "        /*0190*/                   F2FP.BF16.F32.PACK_AB R156, R40, R39 ;",
    "        /*0190*/              @!P2 MUFU.EX2 R159, R24 ;",
    "        /*0190*/                   LDSM.16.M88.4 R154, [R171] ;",
    "        /*0190*/                   IMAD.MOV.U32 R156, RZ, RZ, R24 ;",
]


@pytest.mark.parametrize("inside, wrong", [*((x, False) for x in KEPT), *((x, True) for x in LOST)])
def test_factors_that_a_loop_overwrites_are_recognised(inside, wrong):
    found = overwritten(LOOP.format(inside=inside))
    assert found == ("HGMMA.64x64x16.F32.BF16 R24, R156, gdesc[UR12], R24, gsb0",) * wrong


# Of a kernel that was right: the factor gives its registers to something else, and comes back from the stack.
SPILLED = """
        /*00e0*/                   F2FP.BF16.F32.PACK_AB R157, R27, R26 ;
        /*00f0*/                   MOV R8, R157 ;
        /*00f8*/                   STL.64 [R1+0x148], R156 ;
"""
BACK = """
        /*0190*/                   F2FP.BF16.F32.PACK_AB R156, R40, R39 ;
        /*0198*/                   STS [R171], R156 ;
        /*01a0*/                   {other}
        /*01a8*/                   LDL.LU.64 R156, [R1+{place}] ;
"""


@pytest.mark.parametrize(
    "other, place, wrong",
    [
        ("STL [R1+0x150], R40", "0x148", False),
        ("STL [R1+0x14c], R8", "0x148", False),
        ("STL [R1+0x14c], R40", "0x148", True),
        ("@P2 STL.64 [R1+0x148], R40", "0x148", True),
        ("STL.64 [R1+0x140], R40", "0x140", True),
    ],
)
def test_a_factor_may_come_back_from_the_stack(other, place, wrong):
    inside = BACK.format(other=f"{other} ;", place=place)
    code = LOOP.format(inside=inside).replace(".L_x_5:", f"{SPILLED}.L_x_5:", 1)
    assert bool(overwritten(code)) == wrong


def test_factors_that_the_loop_makes_are_its_own():
    """Of probabilities, which every tile makes anew."""
    made = "        /*0190*/                   F2FP.BF16.F32.PACK_AB R152, R40, R39 ;"
    assert not overwritten(LOOP.format(inside=made))


def test_overwritten_keys_are_refused():
    """Of a line beside a grid, held at D=64 in one loop over tiles with an edge and without."""
    tiling = Tiling(64, 64, 4, 3)
    plan = plan_attention(GRID_AND_TOKEN.pattern, GRID_AND_TOKEN.problem(), GPU, (("dkdv", tiling),))
    (spec,) = (one for one in specs_of(plan, "dkdv") if one.lines)
    assert spec.apart
    assert spec.factors == ("k",)
    compile_for(source_of(spec), TARGETS["sm_90"])
    with pytest.raises(UnsupportedKernel, match="overwrites a factor of HGMMA"):
        compile_for(source_of(replace(spec, apart=False)), TARGETS["sm_90"])
