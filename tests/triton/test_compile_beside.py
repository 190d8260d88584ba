"""Kernels beside those of `test_compile`: for small cards, of other head dimensions, offered and not taken."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from tests.tiers import sample

import weft
from weft.kernels.gpu import sinks
from weft.kernels.gpu.compile import compiler
from weft.kernels.gpu.compile.load import compile_for
from weft.kernels.gpu.configure import specs_of
from weft.planning.attention_plan import plan_attention
from weft.planning.choose import offered
from weft.planning.families.base import Pass
from weft.planning.problem import Problem
from weft.planning.resources import shared_of_blocks
from weft.settings import interpreted

from .resources import SHARED, SMALL, TARGETS, resources
from .specs import BAND, WITH_MORE, Call, card, specs_towards, square
from .specs import CALLS as COMMON

pytestmark = pytest.mark.skipif(interpreted(), reason="Triton interprets, and compiles nothing")
CALLS = COMMON | WITH_MORE


@pytest.mark.wide
@pytest.mark.parametrize("direction", ["forward", "dq", "keys"])
@pytest.mark.parametrize("call", ["window, 256", "window, float32", "window, 256, float32", "2-D"])
def test_a_small_card_has_room(call, direction, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    for spec in specs_towards(CALLS[call], direction, "sm_89"):
        assert compile_for(spec, SMALL).metadata.shared <= SHARED["sm_89"] * 1024, spec.name


@pytest.mark.wide
@pytest.mark.parametrize("target", ["sm_80", "sm_89", "sm_90", "sm_100"])
@pytest.mark.parametrize("direction", ["forward", "dq", "keys"])
@pytest.mark.parametrize("d", [160, 192, 224])
def test_other_head_dimensions_have_room(d, direction, target, tmp_path, monkeypatch):
    """Dimensions in two chunks, and in one that is wider than they are, on lines and on grids."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    for call in (Call(BAND, m=4000, n=4000, dims=(d, d)), replace(CALLS["2-D"], dims=(d, d))):
        for spec in specs_towards(call, direction, target):
            shared = compile_for(spec, SMALL if target == "sm_89" else TARGETS[target]).metadata.shared
            assert shared <= SHARED[target] * 1024, spec.name


@pytest.mark.parametrize("direction", sample(["dq", "keys"], "dq"))
def test_wide_tiles_of_grids_keep_their_loops_free(direction):
    """The second tiling of gradients on grids, at D=128, three axes, which problems as small as these do not choose."""
    (spec,) = specs_towards(CALLS["2-D"], direction)
    wide = replace(spec, rank=3, rows=128, cols=64, warps=8, stages=3, grouped=False)
    taken = resources(compile_for(wide, TARGETS["sm_90"]), "sm_90")
    assert taken.waits < 0.7
    assert taken.inside <= {"dq": 0, "keys": 6}[direction]  # faster all the same (benchmarks/notes/triton.md, T57)


LINES = {
    "one term": weft.causal() & weft.window(left=100),
    "listed bounds": weft.causal() & weft.documents([100, 0, 200]),
    "seen by all": weft.longformer(85, global_tokens=9),
    "two terms": weft.causal() & weft.strided(64),
}


def offers():
    """(name, direction, d, target): each pair of name and direction at one head dimension, for Hopper; more is wide."""
    for (i, name), (j, direction), d in product(enumerate(LINES), enumerate(("forward", "dq", "dkdv")), (64, 128)):
        for target in TARGETS:
            narrow = target == "sm_90" and d == (64, 128)[(i + j) % 2]
            quick = narrow and (name, direction) == ("listed bounds", "dkdv")
            marks = () if quick else pytest.mark.more if narrow else pytest.mark.wide
            yield pytest.param(name, direction, d, target, marks=marks)


@pytest.mark.parametrize("name, direction, d, target", offers())
def test_what_is_offered_beside_the_usual_tiling(name, direction, d, target):
    """Problems as small as these may not choose it. Narrow tiles of keys at D=128 are faster for what they spill."""
    few = 8 if (direction, d) == ("dkdv", 128) else 0
    pattern, problem, gpu = LINES[name], Problem(1, 2, 2, 300, 300, d, d, "bfloat16", "cuda"), card(target)
    for tiling in offered(Pass(direction, [(pattern.acsr(300, 300), 2)], problem, gpu))[1:]:
        for spec in specs_of(plan_attention(pattern, problem, gpu, ((direction, tiling),)), direction):
            taken = resources(compile_for(spec, TARGETS[target]), target)
            assert taken.inside <= few, spec.name
            assert taken.waits < 0.7, spec.name


@pytest.mark.more
@pytest.mark.parametrize("direction", ["forward", "dq", "keys"])
def test_listed_tokens_beside_a_grid(direction):
    """Fast they need not be: products may be serialised, and registers spilled."""
    call = square(weft.neighborhood((32, 40), (9, 11)) | weft.global_tokens([0, 77, 500]), length=1280)
    specs = specs_towards(call, direction)
    assert any(spec.listed and spec.rank == 2 for spec in specs)
    for spec in specs:
        assert resources(compile_for(spec, TARGETS["sm_90"]), "sm_90").shared <= SHARED["sm_90"] * 1024


@pytest.mark.parametrize("target", sample(TARGETS, "sm_90"))
def test_the_gradient_of_sinks(target):
    for made in (sinks.gradient_source(), sinks.sum_source()):
        taken = resources(compiler.compile_for(made, TARGETS[target]), target)
        assert (taken.spilled, taken.inside) == (0, 0)
        assert taken.shared <= 1024


@pytest.mark.parametrize("target", sample(TARGETS, "sm_80"))
def test_the_join_of_sinks(target):
    for dtype, dv in (("bfloat16", 80), ("bfloat16", 128), ("float32", 192), ("float32", 256)):
        taken = resources(compiler.compile_for(sinks.join_source(dtype, dv), TARGETS[target]), target)
        assert (taken.spilled, taken.inside) == (0, 0)
        assert taken.shared <= 1024


IN_16_BITS = [
    ("sm_90", torch.bfloat16, "forward"), ("sm_90", torch.bfloat16, "dq"), ("sm_90", torch.bfloat16, "dkdv"),
    ("sm_80", torch.bfloat16, "dq"), ("sm_80", torch.bfloat16, "dkdv"), ("sm_89", torch.bfloat16, "forward"),
]  # fmt: skip
IN_32_BITS = [pytest.param(target, torch.float32, "forward", marks=pytest.mark.wide) for target in ("sm_90", "sm_80")]


@pytest.mark.parametrize("target, dtype, direction", sample(IN_16_BITS, IN_16_BITS[3]) + IN_32_BITS)
def test_the_remainder_has_room_at_256_channels(target, dtype, direction):
    """With fewer stages than its lines have, where these take too much."""
    call, gpu = Call(weft.random_blocks(64, 3, seed=1), dims=(256, 256), dtype=dtype), card(target)
    for spec in specs_of(plan_attention(call.pattern, call.problem(), gpu), direction):
        assert spec.rank == 0
        shared = compile_for(spec, SMALL if target == "sm_89" else TARGETS[target]).metadata.shared
        counted = shared_of_blocks(direction, call.problem(), spec.stages, gpu)
        assert shared <= counted <= SHARED[target] * 1024


FORWARDS = {
    "running maximum": Call(BAND, dtype=torch.float16),
    "bounds from tables": Call(weft.documents([300, 0, 200, 500]) & weft.causal()),
    "boxes that are cut": square(weft.neighborhood((15, 22), (5, 7)), length=330, dims=(128, 128)),
}


@pytest.mark.parametrize("name", sample(FORWARDS, "running maximum"))
def test_other_forwards_are_not_serialised(name):
    """As they were with sums in parts, and with NVIDIA's own logarithm (Triton 3.6.0)."""
    (spec,) = specs_towards(FORWARDS[name], "forward")
    assert resources(compile_for(spec, TARGETS["sm_90"]), "sm_90").waits < 0.7
