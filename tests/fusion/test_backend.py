"""The backend by its name: found from a checkout, with its options and those of the compiler behind it."""

import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
import torch
from tests.fusion.helpers import EAGER, agree, near, qkv

import weft
from weft.errors import InputError, OptionError
from weft.fusion.settings import Settings

F = torch.nn.functional
ROOT = Path(__file__).resolve().parents[2]
COLD = """
import sys
{imports}
assert "torch._dynamo" not in sys.modules
q, mask = torch.randn(1, 2, 64, 16), torch.ones(64, 64).tril().bool()
made = torch.compile(
    lambda q, mask: torch.nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=mask), backend="weft",
    options={{"weft.inner": "eager", "weft.share": 1.0, "weft.least": 0}},
)
assert made(q, mask).shape == q.shape
assert len(weft.fusion.explanation().replaced) == 1
assert "weft" in torch._dynamo.list_backends()
"""


def sdpa(q, k, v, mask):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


@pytest.mark.more
@pytest.mark.parametrize("imports", ["import torch, weft", "import weft, torch; weft.fuse"])
def test_from_a_cold_process(imports):
    subprocess.run([sys.executable, "-c", COLD.format(imports=imports)], check=True, timeout=300)


def test_the_entry_point_names_the_backend():
    with (ROOT / "pyproject.toml").open("rb") as file:
        (name, target), *others = tomllib.load(file)["project"]["entry-points"]["torch_dynamo_backends"].items()
    module, function = target.split(":")
    assert name == "weft" and not others
    assert callable(getattr(import_module(module), function))


def test_options():
    settings, rest = Settings.of({"weft.share": 0.5, "max_autotune": True})
    assert settings.share == 0.5 and rest == {"max_autotune": True}
    assert Settings.of(None) == (Settings(), {})
    for wrong, cure in (
        ({"weft.shares": 0.5}, 'write "weft.share"'), ({"weft.x": 1}, "the options are weft.share"),
        ({"weft.share": 2}, "from 0 to 1"), ({"weft.least": -1}, "an integer"), ({"weft.inner": 3}, "a name"),
    ):  # fmt: skip
        with pytest.raises(OptionError, match=cure):
            weft.fuse(sdpa, options=wrong)


def test_what_is_no_model():
    for wrong in (3, torch.nn.Linear):
        with pytest.raises(InputError, match="pass the model itself"):
            weft.fuse(wrong)


@pytest.mark.more
def test_graph_breaks_are_told():
    def broken(q, k, v, mask):
        q = sdpa(q, k, v, mask)
        torch._dynamo.graph_break()
        return sdpa(q, k, v, mask)

    torch._dynamo.reset()
    inputs = (*qkv(), near())
    made = weft.fuse(broken, options=EAGER)
    agree(made(*inputs), broken(*inputs))
    explanation = made.explanation
    assert [graph.replaced for graph in explanation.graphs] == [1, 1]
    assert explanation.graphs[0].broken and "the graph ends here" in str(explanation)


@pytest.mark.more
def test_hooks_see_what_they_saw():
    """Dynamo traces hooks of modules into the graph, or breaks it."""

    class Layer(torch.nn.Module):
        def forward(self, q, k, v, mask):
            return sdpa(q, k, v, mask)

    layer, seen = Layer(), []
    layer.register_forward_hook(lambda module, args, out: out * 2)
    layer.register_forward_pre_hook(lambda module, args: seen.append(len(args)))
    torch._dynamo.reset()
    inputs = (*qkv(), near())
    made = weft.fuse(layer, options=EAGER)
    agree(made(*inputs), layer(*inputs))
    assert seen == [4, 4]


@pytest.mark.more
def test_weights_that_change_in_place():
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(16))

        def forward(self, q, k, v, mask):
            self.scale.data.mul_(0.5)
            return sdpa(q * self.scale, k, v, mask)

    torch._dynamo.reset()
    inputs = (*qkv(), near())
    one, other = Layer(), Layer()
    made = weft.fuse(one, options=EAGER)
    for _ in range(3):
        agree(made(*inputs), other(*inputs))
    agree(one.scale, other.scale)


@pytest.mark.more
def test_transforms_stay_as_they_are():
    def gradient(q, k, v, mask):
        return torch.func.grad(lambda x: sdpa(x, k, v, mask).sum())(q)

    torch._dynamo.reset()
    inputs = (*qkv(), near())
    made = weft.fuse(gradient, options=EAGER)
    agree(made(*inputs), gradient(*inputs))
    assert not made.explanation.replaced


@pytest.mark.more
def test_the_explanation_does_not_run_what_ran():
    calls = []

    @torch._dynamo.disable
    def count():
        calls.append(1)

    def counted(x):
        count()
        return x + 1

    torch._dynamo.reset()
    made = weft.fuse(counted, torch.ones(3), options=EAGER)
    assert not calls
    assert made.explanation.graphs and len(calls) == 1
    assert made.explanation.graphs and len(calls) == 1
    assert str(weft.fuse(counted, options=EAGER).explanation) == "no graph was compiled yet"


@pytest.mark.wide
def test_inductor_with_its_options():
    """Minutes of C++ on a CPU."""
    torch._dynamo.reset()
    inputs = (*qkv(grad=True), near())
    options = {"weft.share": 1.0, "weft.least": 0, "epilogue_fusion": True}
    made = torch.compile(lambda *x: sdpa(*x).relu() * 2, backend="weft", mode="default", options=None)
    made = torch.compile(lambda *x: sdpa(*x).relu() * 2, backend="weft", options=options)
    found, expected = made(*inputs), sdpa(*inputs).relu() * 2
    agree(found, expected)
    agree(torch.autograd.grad(found.sum(), inputs[:3]), torch.autograd.grad(expected.sum(), inputs[:3]))
    assert weft.fusion.explanation().replaced
