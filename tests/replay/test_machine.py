"""What is read from machine code: opcodes without guards and labels, innermost loops, and all of a compiled kernel."""

from collections import Counter
from dataclasses import replace

import pytest

from weft.settings import interpreted

if interpreted():
    pytest.skip("Triton interprets, and compiles nothing", allow_module_level=True)

from .adapter import compile_kernel, trace
from .cases import CASES
from .machine import amd_loops, amd_opcodes, counted, measure, nvidia_opcodes, stem
from .measured import differences
from .reference import State, report, write

SASS = """
        .section        .text.kernel,"ax",@progbits
.text.kernel:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/               @P0 BRA `(.L_x_3) ;
.L_x_1:
        /*0020*/                   IMAD.MOV.U32 R2, RZ, RZ, R3 ;
.L_x_2:
        /*0030*/              @!P1 LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0040*/                   HGMMA.64x64x16.F32.BF16 R24, R8, gdesc[UR4], R24, gsb0 ;
        /*0050*/                   HGMMA.64x64x16.F32.BF16 R24, R8, gdesc[UR4], R24, gsb0 ;
        /*0060*/                   WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
        /*0070*/                   STL [R1], R4 ;
        /*0080*/            @UP2 UIADD3 UR4, UR4, 0x1, URZ ;
        /*0090*/               @P1 BRA `(.L_x_2) ;
        /*00a0*/              @!P2 BRA `(.L_x_1) ;
.L_x_3:
        /*00b0*/                   EXIT ;
.L_x_4:
        /*00c0*/                   BRA `(.L_x_4);
        /*00d0*/                   NOP;
"""
AMD = """
	.text
kernel:                                 ; @kernel
; %bb.0:
	s_load_dwordx2 s[0:1], s[4:5], 0x0
	s_cbranch_scc1 .LBB0_3
.LBB0_1:                                ; =>This Loop Header: Depth=1
	v_mov_b32_e32 v0, 0
.LBB0_2:                                ; Parent Loop
	s_waitcnt vmcnt(0)
	v_mfma_f32_32x32x8_bf16_1k a[0:15], v[0:1], v[2:3], a[0:15]
	scratch_load_dword v1, off, s32
	s_cbranch_vccnz .LBB0_2
	s_branch .LBB0_1
.LBB0_3:
	s_endpgm
	s_code_end
"""


def test_opcodes_have_neither_guards_nor_labels_nor_padding():
    found = Counter(nvidia_opcodes(SASS))
    assert found == Counter(
        {
            "LDC": 1, "BRA": 4, "IMAD.MOV.U32": 1, "LDG.E.128": 1, "HGMMA.64x64x16.F32.BF16": 2,
            "WARPGROUP.DEPBAR.LE": 1, "STL": 1, "UIADD3": 1, "EXIT": 1,
        }
    )  # fmt: skip


def test_amd_opcodes_have_neither_directives_nor_comments():
    assert amd_opcodes(AMD) == [
        "s_load_dwordx2", "s_cbranch_scc1", "v_mov_b32_e32", "s_waitcnt", "v_mfma_f32_32x32x8_bf16_1k",
        "scratch_load_dword", "s_cbranch_vccnz", "s_branch", "s_endpgm",
    ]  # fmt: skip


def test_modifiers_are_no_part_of_a_stem():
    names = "HGMMA.64x64x16.F32.BF16", "EXIT", "v_mfma_f32_32x32x8_bf16_1k", "s_endpgm", "ds_read_b128"
    assert [stem(name) for name in names] == ["HGMMA", "EXIT", "v_mfma", "s_endpgm", "ds_read"]


def test_waits_are_counted_in_innermost_loops():
    from tests.triton.resources import innermost

    assert counted(innermost(SASS)) == ((2, 1, 1),)
    assert counted(amd_loops(AMD)) == ((1, 1, 1),)


# ---- a kernel --------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def kernel():
    """The merge of a step of decoding, which compiles in a moment."""
    return trace(CASES["step"], "sm_90").phases["step"][1].kernel


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """Compiles each time, whatever was compiled before."""

    def measured(kernel, turn):
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / f"cache-{turn}"))
        return measure(compile_kernel(kernel, "sm_90"), "sm_90")

    return measured


def test_a_changed_kernel_is_reported_and_the_same_one_recorded_alike(kernel, measured, tmp_path):
    one, again, other = measured(kernel, 1), measured(kernel, 2), measured(replace(kernel, warps=1), 3)
    assert one == again
    assert differences(one, again) == []
    before, same, after = (
        State({}, {("3.7.1", "sm_90"): {("step", "step.1"): found}}) for found in (one, again, other)
    )
    folders = [tmp_path / name for name in "ab"]
    for state, folder in zip((before, same), folders, strict=True):
        write(state, folder)
    first, second = ({path.name: path.read_bytes() for path in folder.iterdir()} for folder in folders)
    assert first == second
    (text,) = report(before, after)
    assert "step step.1 on sm_90 with Triton 3.7.1" in text
    assert f"{one.registers} -> {other.registers} registers" in text
    assert "opcodes" in text
