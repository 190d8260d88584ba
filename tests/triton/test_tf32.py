"""Products of float32 take tf32 where torch's own may, from one call to the next; else they are float32's."""

from contextlib import nullcontext
from dataclasses import replace
from unittest import mock

import pytest
import torch
from tests.kernels.compare import one_kernel as of_one_kernel
from tests.kernels.planned import launching_nothing, specs_of
from tests.tiers import sample

import weft
from weft.kernels.gpu.compile.emit import emit
from weft.kernels.gpu.compile.load import compile_for
from weft.kernels.options import Modifiers
from weft.planning.attention_plan import plan_attention
from weft.settings import interpreted
from weft.target import GPU
from weft.torch import bind, gpu

from .resources import TARGETS
from .specs import Call, specs_towards, square, tiling_with_dq

MATMUL, HOW = torch.backends.cuda.matmul, Modifiers(0.1)
WAYS = {
    "set_float32_matmul_precision": lambda: torch.set_float32_matmul_precision("high"),
    "allow_tf32": lambda: setattr(MATMUL, "allow_tf32", True),
    "fp32_precision": lambda: setattr(MATMUL, "fp32_precision", "tf32"),
}
CALLS = {
    "window": Call(weft.window(9, 4), dtype=torch.float32),
    "2-D": square(weft.neighborhood((8, 8), (3, 3)), length=64, dtype=torch.float32),
}


@pytest.fixture(autouse=True)
def as_it_was():
    before = MATMUL.fp32_precision
    yield
    MATMUL.fp32_precision = "ieee"  # a mixture of old and new settings cannot be told by the old ones
    torch.set_float32_matmul_precision("highest")
    MATMUL.fp32_precision = before


def launched(call):
    """The KernelSpecs of one call and its gradients, as torch's state has them at present."""
    plan = plan_attention(call.pattern, call.problem(), GPU, (("dkdv", tiling_with_dq(call)),) * call.one_kernel)
    q, k, v = qkv(call)
    with of_one_kernel() if call.one_kernel else nullcontext(), launching_nothing() as programs:
        out, lse = gpu.forward((q, k, v), plan, HOW)
        gpu.backward((q, k, v), (out, out, lse, None), plan, HOW, not call.one_kernel, False)
    return specs_of(programs)


def qkv(call):
    heads = call.heads[0], call.heads[1], call.heads[1]
    return tuple(torch.empty(call.batch, count, call.m, call.dims[0], dtype=call.dtype) for count in heads)


def precisions(specs):
    """What the products of emitted kernels say."""
    return {word for spec in specs for word in ("tf32", "ieee") if f"precision='{word}'" in emit(spec)}


@pytest.mark.parametrize("one_kernel", [False, True])
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("way", WAYS)
def test_when_it_is_asked_for(way, name, one_kernel):
    call = replace(CALLS[name], one_kernel=one_kernel)
    before = launched(call)
    assert precisions(before) == {"ieee"}
    WAYS[way]()
    after = launched(call)
    assert precisions(after) == {"tf32"}
    assert all("tf32" in spec.name for spec in after)
    assert [replace(spec, tf32=False) for spec in after] == before


def test_other_types_do_not_care():
    call = Call(weft.causal())
    before = launched(call)
    WAYS["allow_tf32"]()
    assert launched(call) == before


def test_amd_has_none(monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6.4")
    WAYS["allow_tf32"]()
    assert precisions(launched(CALLS["window"])) == {"ieee"}


def test_one_plan_is_asked_again_at_every_call():
    call = CALLS["window"]
    plan = plan_attention(call.pattern, call.problem(), GPU)
    names = []

    def kernel_of(source, device):
        kernel = mock.MagicMock()
        kernel.__getitem__.side_effect = lambda grid: names.append(source.name) or (lambda *values: None)
        return kernel

    with launching_nothing() as programs, mock.patch.object(bind, "kernel_of", kernel_of):
        for precision in ("highest", "high", "highest", "medium"):
            torch.set_float32_matmul_precision(precision)
            gpu.forward(qkv(call), plan, HOW)
    assert ["tf32" in name for name in names] == [False, True, False, True]
    assert len(programs) == 2


@pytest.mark.skipif(interpreted(), reason="Triton interprets, and compiles nothing")
@pytest.mark.parametrize("target", sample(TARGETS, "sm_80"))
def test_every_target_compiles_it(target):
    (spec,) = specs_towards(replace(CALLS["window"], options={"tf32": True}), "forward", target)
    assembly = compile_for(spec, TARGETS[target]).asm
    if target.startswith("sm"):
        assert "tf32" in assembly["ptx"]
        assert "tf32" not in compile_for(replace(spec, tf32=False), TARGETS[target]).asm["ptx"]
