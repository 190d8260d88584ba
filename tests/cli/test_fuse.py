"""`weft fuse`: what it lists, draws and refuses."""

import json

import pytest
from click.testing import CliRunner

from weft.cli import main

pytestmark = pytest.mark.more
MODELS = """
import torch


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(32, 64), torch.nn.Linear(64, 32)
        self.norm = torch.nn.LayerNorm(32)

    def forward(self, x, mask):
        q = x.view(*x.shape[:2], 2, 16).transpose(1, 2)
        out = torch.nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=mask)
        x = x + out.transpose(1, 2).reshape(x.shape)
        return self.norm(x + self.down(torch.nn.functional.gelu(self.up(x))))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([Layer(), Layer()])

    def forward(self, x, mask):
        for layer in self.layers:
            x = layer(x, mask)
        return x


def model():
    return Model(), torch.randn(2, 64, 32), torch.ones(64, 64, dtype=torch.bool).tril()


def by_name():
    model, x, mask = globals()["model"]()
    return model, {"x": x, "mask": mask}


def wrong():
    return 3
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    (tmp_path / "fuse_these_models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return lambda *args: CliRunner().invoke(main, ["fuse", *map(str, args)])


@pytest.mark.parametrize("name", ["model", "by_name"])
def test_explained(run, name, tmp_path):
    done = run(f"fuse_these_models:{name}", "--explain", "--share", 1, "--least", 0, "--out", tmp_path / "layer.svg")
    assert done.exit_code == 0, done.output
    told = ("graph 0: 2 attentions found, 2 replaced", "layers.1", "causal()", "2 layers alike", "up, gelu", "kernels")
    for text in told:
        assert text in done.output
    assert (tmp_path / "layer.svg").read_text().startswith("<svg")


def test_json_and_reasons(run):
    said = json.loads(run("fuse_these_models:model", "--json").output)
    assert [one["reason"] != "" for one in said["attention"]] == [True, True]
    assert said["segments"][0]["layers"] == ["layers.0", "layers.1"] and said["target"] == "h200"
    assert "2 attentions found, 0 replaced" in run("fuse_these_models:model").output


@pytest.mark.parametrize(
    "args, cure",
    [
        (("fuse_these_models:wrong",), "return (model, *inputs)"), (("model",), "write MODULE:FUNCTION"),
        (("fuse_these_models:none",), "name a module"), (("fuse_these_models:MODELS",), "name a module"),
        (("fuse_these_models:model", "--out", "/nowhere/x.svg"), "name a file that can be written"),
    ],
)  # fmt: skip
def test_refusals(run, args, cure):
    done = run(*args)
    assert done.exit_code == 2 and cure in done.output
