"""benchmarks/fused_parts.py: kernels of profiles by their names, as an H200 said them."""

from importlib import import_module
from pathlib import Path

import pytest

HERE = Path(__file__).parents[2] / "benchmarks"
KERNELS = {
    "products": (
        "nvjet_sm90_hsh_192x192_64x3_2x1_v_bz_coopB_gelubias_NNN", "product", "projections",
        "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma",
    ),
    "attention": (
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64_4x1x1_cga1x1x1_kernel0_0",
        "weft_fwd_tile_blocks_d64_fp16", "triton_tem_fused_flex_attention_split_transpose_view_0",
    ),
    "activations alone": ("triton_poi_fused_gelu_view_3", "triton_poi_fused_add_mul_pow_tanh_view_3"),
    "norms, sums, the rest": (
        "triton_per_fused_add_native_layer_norm_view_2", "Memset (Device)", "triton_poi_fused_tanh_5",
        "triton_poi_fused__scaled_dot_product_cudnn_attention_scalar_tensor_split_transpose_view_where_1",
    ),
}  # fmt: skip


@pytest.fixture
def parts(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))
    return import_module("fused_parts")


def test_each_kernel_is_in_its_part(parts):
    assert tuple(KERNELS) == parts.PARTS
    for part, names in KERNELS.items():
        assert {parts.part_of(name) for name in names} == {part}, names
    assert parts.microseconds([("product", 2.4), ("projections", 3.4), ("Memset (Device)", 1.0)]) == {
        "products": "6", "attention": "0", "activations alone": "0", "norms, sums, the rest": "1",
    }  # fmt: skip
