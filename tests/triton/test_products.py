"""The templates of kernels/gpu/gemm, compiled for sm_90: hardly a spill, tensor cores, shared memory as told."""

import pytest
from tests.tiers import sample
from tests.triton.resources import SHARED, TARGETS, resources
from triton.compiler import ASTSource, compile

from weft.kernels.gpu.gemm.config import DOUBLE, SINGLE, Config
from weft.kernels.gpu.gemm.product import product
from weft.kernels.gpu.gemm.projections import projections

SIZES = ("m", "n", "k", "q_n", "kv_n", "depth")
INTEGERS = (*SIZES, "q_place", "k_place", "v_place", "tiles", "count", "length", "batch_stride")
TINY = Config(64, 32, 128, 4, 4)


def compiled(kernel, config, boxes, constants, dtype="fp16"):
    """boxes: shapes of descriptors by name; constants: what is known, None for what is missing."""
    constants |= {
        "ROWS": config.rows, "COLS": config.cols, "DEPTH": config.depth, "GROUP": config.group,
        "STORED": config.stored, "PERSISTENT": config.persistent,
    }  # fmt: skip
    types = {}
    for name in (one.name for one in kernel.params):
        if name in constants:
            types[name] = "constexpr"
        elif name in boxes:
            types[name] = f"tensordesc<{dtype}{list(boxes[name])}>"
        elif name in INTEGERS:
            types[name] = "i32"
        else:
            types[name] = "fp32" if name == "epsilon" else "*fp32" if "squares" in name else f"*{dtype}"
    aligned = {(i,): [["tt.divisibility", 16]] for i, (n, t) in enumerate(types.items()) if t[0] == "*" or n in SIZES}
    source = ASTSource(kernel, types, constants, aligned)
    options = {"num_warps": config.warps, "num_stages": config.stages}
    return compile(source, target=TARGETS["sm_90"], options=options)


def product_of(config, activation, gated=False, dtype="fp16", **missing):
    of_out = (config.rows, config.stored)
    weights = (1 + gated, config.cols, config.depth)
    boxes = {"x": (config.rows, config.depth), "weights": weights, "residual": of_out, "out": of_out}
    boxes["kept"] = (1, *of_out)
    constants = {"ACTIVATION": activation, "BY_ROWS": False, "EVEN": True, **missing}
    constants |= {"gate_bias": None, "squares": None, "new_squares": None, "GATE": 1 if gated else None}
    return compiled(product, config, boxes, constants, dtype)


def check(kernel, config, weights, beside=False):
    found = resources(kernel, "sm_90")
    assert "wgmma.mma_async" in kernel.asm["ptx"]
    assert found.spilled <= 8 and found.shared <= SHARED["sm_90"] << 10
    assert found.shared <= config.shared(weights, beside) + 1024, (found, config)


@pytest.mark.parametrize("config", sample(SINGLE, SINGLE[2], SINGLE[6]), ids=str)
def test_a_product_with_bias_and_gelu(config):
    check(product_of(config, "gelu", residual=None, kept=None), config, 1)


@pytest.mark.more
@pytest.mark.parametrize("config", DOUBLE, ids=str)
def test_a_gated_product(config):
    check(product_of(config, "silu", True, residual=None, bias=None, kept=None), config, 2)


def test_what_gradients_need_is_kept():
    kernel = product_of(TINY, "gelu", residual=None)
    check(kernel, TINY, 1, 1)
    stores = kernel.asm["ptx"].count("cp.async.bulk.tensor.3d.global.shared")
    assert stores and not product_of(TINY, "gelu", residual=None, kept=None).asm["ptx"].count("tensor.3d.global.shared")


@pytest.mark.more
@pytest.mark.parametrize("config", [one for one in DOUBLE if one.shared(2, 2) <= SHARED["sm_90"] << 10], ids=str)
def test_a_gated_product_keeps_both(config):
    check(product_of(config, "silu", True, residual=None, bias=None), config, 2, 2)


@pytest.mark.more
@pytest.mark.parametrize(
    "config", [one for one in SINGLE if not one.stored % 64 and one.shared(1, True) <= SHARED["sm_90"] << 10], ids=str
)
def test_projections_with_rotations(config):
    boxes = {"x": (config.rows, config.depth), "weights": (1, config.cols, config.depth)}
    boxes["out"] = (config.rows, config.stored)
    constants = dict.fromkeys(("q_bias", "k_bias", "v_bias", "q_norm", "k_norm"))
    constants |= {"D": 64, "INTERLEAVED": False, "BY_ROWS": False}
    check(compiled(projections, config, boxes, constants), config, 1, True)


def test_the_smallest_tile():
    check(product_of(TINY, "relu", residual=None, kept=None), TINY, 1)


@pytest.mark.parametrize("gated", [False, True], ids=["one", "gated"])
def test_float32_is_not_rounded_to_tf32(gated):
    """Only tests multiply it by these kernels; torch has it elsewhere."""
    ptx = product_of(Config(32, 32, 16, 4, 2), "gelu", gated, "fp32", residual=None, kept=None).asm["ptx"]
    assert "tf32" not in ptx and "fma.rn.f32" in ptx
