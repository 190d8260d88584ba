"""The names that a profiler shows: what they say, and that kernels are compiled under them."""

import re
from dataclasses import replace

import pytest

pytest.importorskip("triton")

from weft.kernels.gpu import sinks
from weft.kernels.gpu.compile import compiler, load
from weft.kernels.gpu.compile.emit import emit
from weft.kernels.gpu.configure import fused_spec, sparse_specs
from weft.kernels.gpu.spec import KernelSpec
from weft.kernels.gpu.split_kv import source as split_kv
from weft.kernels.gpu.split_kv.spec import SplitKVSpec, combining
from weft.planning.problem import Problem
from weft.settings import interpreted

from .resources import TARGETS

LINE = KernelSpec("forward", "bfloat16", 64, 64, 1, 64, 64)
SHORT = Problem(1, 2, 2, 4096, 4096, 64, 64, "bfloat16", "cuda")
ROWS = SplitKVSpec("float16", 128, 128, 16, 64)
NAMES = {
    "weft_fwd_tile_line_d64_bf16": LINE,
    "weft_fwd_tile_blocks_d192x128_fp32": replace(LINE, rank=0, d=192, dv=128, dtype="float32"),
    "weft_fwd_tile_line_d64_fp32_tf32": replace(LINE, dtype="float32", tf32=True),
    "weft_fwd_tile_table_line2_d64_bf16": replace(LINE, formula=False, terms=2),
    "weft_fwd_tile_listed_lines_d64_bf16": replace(LINE, listed=True, several=True),
    "weft_fwd_hopper_line2_d64_bf16": replace(LINE, groups=4, terms=2),
    "weft_fwd_hopper_short_line_d64_bf16": replace(LINE, groups=4, short=True),
    "weft_bwd_dq_tile_grid2_d128_fp16": replace(LINE, direction="dq", rank=2, d=128, dv=128, dtype="float16"),
    "weft_bwd_dkdv_tile_grid3_d64_bf16": replace(LINE, direction="dkdv", rank=3),
    "weft_bwd_dkdv_hopper_line_d64_bf16": replace(LINE, direction="dkdv", groups=2),
    "weft_bwd_dkdv_dq_tile_lines_d64_bf16": replace(LINE, direction="dkdv", with_dq=True, several=True),
    "weft_bwd_dv_tile_line_d256_bf16": replace(LINE, direction="dkdv", makes="dv", d=256, dv=256),
    "weft_bwd_delta_tile_d64_bf16": replace(LINE, direction="delta"),
    "weft_bwd_fused_hopper_line_d64_bf16": fused_spec(SHORT),
    "weft_bwd_sparse_keys_hopper_d64_bf16": sparse_specs(SHORT)[0],
    "weft_reduce_partials_hopper_d64_bf16": sparse_specs(SHORT)[1],
    "weft_decode_split_kv_d128_fp16": ROWS,
    "weft_decode_combine_d128_fp16": combining(ROWS, 33),
}


@pytest.mark.parametrize("name", NAMES)
def test_what_a_name_says(name):
    assert NAMES[name].symbol == name and name.isidentifier() and len(name) < 64
    text = split_kv.entry(NAMES[name]) if isinstance(NAMES[name], SplitKVSpec) else emit(NAMES[name])
    assert re.findall(r"^def (\w+)\(", text, re.MULTILINE) == [name]
    assert text.endswith(f"\n\n\nkernel = {name}\n")


@pytest.mark.skipif(interpreted(), reason="Triton interprets, and compiles nothing")
@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_kernels_are_compiled_under_their_names(target):
    small = KernelSpec("forward", "bfloat16", 16, 16, 0, 64, 64, warps=4)
    merge = SplitKVSpec("bfloat16", 16, 16, 16, 16, combine=True)
    found = [load.source_of(small), split_kv.source_of(merge), sinks.gradient_source()]
    found += [load.source_of(sparse_specs(SHORT)[1])] if target == "sm_90" else []
    names = [compiler.compile_for(one, TARGETS[target]).name for one in found]
    expected = [small.symbol, merge.symbol, "weft_sink_gradient", "weft_reduce_partials_hopper_d64_bf16"]
    assert names == expected[: len(found)]
