"""Products of float32 take tf32 where torch's own may, from one call to the next; else they are float32's."""

from dataclasses import replace

import pytest
import torch

import weft
from weft.kernels.options import Modifiers
from weft.kernels.triton import run
from weft.kernels.triton.emit import emit
from weft.kernels.triton.load import compile_for
from weft.planning.attention_plan import plan_attention
from weft.settings import interpreted
from weft.target import GPU

from .resources import TARGETS
from .specs import Call, launches, specs_of, specs_towards, square

MATMUL = torch.backends.cuda.matmul
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


def precisions(specs):
    """What the products of emitted kernels say."""
    return {word for spec in specs for word in ("tf32", "ieee") if f'input_precision="{word}"' in emit(spec)}


@pytest.mark.parametrize("one_kernel", [False, True])
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("way", WAYS)
def test_when_it_is_asked_for(way, name, one_kernel):
    call = replace(CALLS[name], one_kernel=one_kernel)
    before = specs_of(call)
    assert precisions(before) == {"ieee"}
    WAYS[way]()
    after = specs_of(call)
    assert precisions(after) == {"tf32"}
    assert all("tf32" in spec.name for spec in after)
    assert [replace(spec, tf32=False) for spec in after] == before


def test_other_types_do_not_care():
    call = Call(weft.causal())
    before = specs_of(call)
    WAYS["allow_tf32"]()
    assert specs_of(call) == before


def test_amd_has_none(monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6.4")
    WAYS["allow_tf32"]()
    assert precisions(specs_of(CALLS["window"])) == {"ieee"}


def test_one_plan_is_asked_again_at_every_call():
    call = CALLS["window"]
    plan = plan_attention(call.pattern, call.problem(), GPU)
    q, k, v = (torch.empty(2, heads, 1000, 64) for heads in (4, 2, 2))
    found = []
    with launches() as launched:
        for precision in ("highest", "high", "highest", "medium"):
            torch.set_float32_matmul_precision(precision)
            run.forward((q, k, v), plan, Modifiers(0.1))
            found.append(launched[-1].tf32)
    assert found == [False, True, False, True]


@pytest.mark.skipif(interpreted(), reason="Triton interprets, and compiles nothing")
@pytest.mark.parametrize("target", TARGETS)
def test_every_target_compiles_it(target):
    WAYS["allow_tf32"]()
    spec = next(iter(specs_towards(CALLS["window"], "forward", target)))
    assembly = compile_for(spec, TARGETS[target]).asm
    if target.startswith("sm"):
        assert "tf32" in assembly["ptx"]
        assert "tf32" not in compile_for(replace(spec, tf32=False), TARGETS[target]).asm["ptx"]
