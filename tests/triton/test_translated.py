"""What LLVM and ptxas are known to make of a right source, recognised and refused; no GPU is needed."""

from dataclasses import replace
from unittest import mock

import pytest
from tests.tiers import every

import weft
from weft.errors import UnsupportedKernel
from weft.kernels.gpu.compile import stages
from weft.kernels.gpu.compile.compiler import compile_for
from weft.kernels.gpu.compile.load import source_of
from weft.kernels.gpu.compile.miscompiles import carried, mistake, overwritten, spoiled, unset
from weft.kernels.gpu.compile.sass import Flow, parse, table_of
from weft.kernels.gpu.configure import specs_of
from weft.planning.attention_plan import plan_attention
from weft.planning.tiling import Tiling
from weft.settings import interpreted
from weft.target import GPU

from .resources import TARGETS, WHOLE
from .specs import CALLS, specs_towards, square

pytestmark = pytest.mark.skipif(interpreted(), reason="Triton interprets, and compiles nothing")

GRID_AND_TOKEN = square(weft.neighborhood((15, 22), (5, 7)) | weft.global_tokens([99]), length=330)


def flow_of(code):
    return Flow.of(parse(code))


# ---- LLVM ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("factor, wrong", [(2147483648, True), (-2147483648, True), (2, False), (-766435501, False)])
def test_what_llvm_spoils_is_recognised(factor, wrong):
    """Of a kernel that was wrong: tid & 3, doubled, beside (tid >> 2) << 31, of which more than 32 bits were kept."""
    line = f"mul.wide.u32 \t%rd200, %r12, {factor};"
    found = spoiled(f"shl.b64 \t%rd202, %rd201, 33;\n{line}\nor.b64 \t%rd203, %rd200, %rd202;")
    assert found == (line,) * wrong


def test_what_llvm_spoiled_is_refused():
    spec = specs_towards(CALLS["window"], "forward")[0]
    made = mock.Mock(asm={"ptx": "mul.wide.u32 \t%rd200, %r12, 2147483648;"})
    with (
        mock.patch.object(stages, "run", return_value=made),
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
    found = overwritten(flow_of(LOOP.format(inside=inside)))
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
    assert bool(overwritten(flow_of(code))) == wrong


def test_factors_that_the_loop_makes_are_its_own():
    """Of probabilities, which every tile makes anew."""
    made = "        /*0190*/                   F2FP.BF16.F32.PACK_AB R152, R40, R39 ;"
    assert not overwritten(flow_of(LOOP.format(inside=made)))


PRODUCT = "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%r8,%r9}, {%r1,%r2,%r3,%r4}, %rd1, %p1, 1, 1, 1;"
PACKED = "\tcvt.rn.bf16x2.f32 %r1, %r6, %r5;\n"


def test_factors_that_a_loop_carries_are_on_purpose():
    """Weights that wait for their product until the next tile: PTX says so, machine code does not."""
    assert carried(PACKED + PRODUCT + "\n" + PACKED)
    assert not carried(PACKED + PRODUCT)
    assert not carried(2 * PACKED.replace("%r1", "%r7") + PACKED + PRODUCT)


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


# Of a forward that was wrong: what a branch made of the queries' descriptor was taken after it.
BRANCH = """
        /*0010*/                   USHF.R.U32.HI UR12, URZ, 0x4, URZ ;
        /*0018*/                   UMOV UR41, 0x40000040 ;
        /*0020*/                   {before}
        /*0030*/              @!P0 BRA `(.L_x_8) ;
        /*0040*/                   UIADD3 UR32, UP1, UR12, 0x2, URZ ;
        /*0050*/                   {inside}
.L_x_8:
        /*0060*/                   UIADD3 UR20, UP1, {after}, 0x2, URZ ;
        /*0070*/                   EXIT ;
"""
NOTHING = "NOP ;"


def branch(before=NOTHING, inside=NOTHING, after="UR32"):
    return BRANCH.format(before=before, inside=inside, after=after)


@pytest.mark.parametrize(
    "code, wrong",
    [
        (branch(), True),
        (branch(after="UR12"), False),
        (branch(before="R2UR UR32, R4 ;"), False),
        (branch(before="VOTEU.ANY UR32, UPT, PT ;"), False),
        (branch(before="UTMASTG.5D [UR32], [UR12] ;"), True),
        (branch(before="UMOV UR31, URZ ;"), True),
        (branch(before="UIADD3.64 UR32, UR12, 0x2, URZ ;", after="UR33"), False),
        (branch(inside="BRA `(.L_x_8) ;"), True),
        (branch(inside="EXIT ;"), True),
        (branch().replace("@!P0 BRA", "BRA"), True),
        (branch().replace("@!P0 BRA `(.L_x_8)", "NOP"), False),
        ("", False),
    ],
)
def test_what_a_path_leaves_out_is_recognised(code, wrong):
    assert bool(unset(flow_of(code))) == wrong


@pytest.mark.parametrize(
    "product, wrong",
    [
        ("HGMMA.64x64x16.F32.BF16 R24, gdesc[UR40], RZ, !UPT", True),
        ("HGMMA.64x64x16.F32.BF16 R24, R156, gdesc[UR38], R24, gsb0", False),
        ("HGMMA.64x64x16.F32.BF16 R24, R156, gdesc[UR40], R24, gsb0", True),
    ],
)
def test_a_product_takes_descriptors_of_what_lies_in_memory(product, wrong):
    """Two registers each; of a factor in registers none. UR40 and UR41 are written here, UR42 and UR43 are not."""
    code = f"UMOV UR40, UR4 ;\nUMOV UR41, UR4 ;\n{product} ;\nEXIT ;"
    assert any("HGMMA" in one for one in unset(flow_of(f"UMOV UR4, URZ ;\n{code}"))) == wrong


def test_groups_that_part_have_what_was_written_before():
    """Where they part, the jump says only by a table where to."""
    table = '(*"BRANCH_TARGETS .L_x_1,.L_x_2"*)'
    groups = ".L_x_1:\nUMOV UR6, UR4 ;\nEXIT ;\n.L_x_2:\nUMOV UR8, UR6 ;\nEXIT ;"
    code = f"UMOV UR4, URZ ;\nBRX R2 -0x500 {table} ;\n{groups}"
    assert unset(flow_of(code)) == ("UMOV UR8, UR6",)


def test_what_a_path_left_out_is_refused():
    made = mock.Mock(asm={"ptx": "wgmma.mma_async", "cubin": b""})
    with mock.patch("weft.kernels.gpu.compile.miscompiles.disassembled", lambda *_: branch()):
        assert "a path leaves out what is read by UIADD3" in mistake(made, TARGETS["sm_90"])


@pytest.mark.more
@pytest.mark.parametrize("call", every(2, ["window, by groups", "window"]))
def test_branches_that_look_their_targets_up_are_read_from_the_table(call):
    """Of warp groups. What the disassembler finds takes it longer, and is the same program."""
    (spec,) = specs_towards(CALLS[call], "forward")
    cubin = compile_for(source_of(spec), TARGETS["sm_90"]).asm["cubin"]
    whole, table = parse(WHOLE(cubin)), table_of(cubin)
    assert bool(table) == (call == "window, by groups")
    found = parse(WHOLE(cubin, "-ndf"), table)
    branches = [one for one in whole if one.opcode == "BRX"]
    assert len(branches) == bool(table) and all(len(one.to) > 1 for one in branches)
    assert [(*one[:4], sorted(one.to)) for one in found if one.opcode != "BRX"] == [
        (*one[:4], sorted(one.to)) for one in whole if one.opcode != "BRX"
    ]
    assert [sorted(one.to) for one in found if one.opcode == "BRX"] == [sorted(one.to) for one in branches]
