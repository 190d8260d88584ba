"""Layers read from graphs: their operators, bytes and work; and what is said of them."""

import pytest
import torch
from tests.fusion.helpers import EAGER, near

import weft
from weft.errors import OptionError
from weft.fusion.known import layer
from weft.fusion.segments import unfused

F = torch.nn.functional
pytestmark = pytest.mark.more
BATCH, TOKENS, HIDDEN, INNER = 2, 48, 32, 64


class Layer(torch.nn.Module):
    """A layer as BERT has it."""

    def __init__(self):
        super().__init__()
        for name in ("q", "k", "v", "out"):
            setattr(self, name, torch.nn.Linear(HIDDEN, HIDDEN, bias=False))
        self.up = torch.nn.Linear(HIDDEN, INNER, bias=False)
        self.down = torch.nn.Linear(INNER, HIDDEN, bias=False)
        self.norm_1, self.norm_2 = torch.nn.LayerNorm(HIDDEN), torch.nn.LayerNorm(HIDDEN)

    def forward(self, x, mask):
        q, k, v = (f(x).view(*x.shape[:2], 2, 16).transpose(1, 2) for f in (self.q, self.k, self.v))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).reshape(x.shape)
        x = self.norm_1(x + F.dropout(self.out(out), 0.1, False))
        return self.norm_2(x + self.down(F.gelu(self.up(x))))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([Layer(), Layer(), Layer()])

    def forward(self, x, mask):
        for one in self.layers:
            x = one(x, mask)
        return x


@pytest.fixture(scope="module")
def explanation():
    torch._dynamo.reset()
    return weft.fuse(Model(), torch.randn(BATCH, TOKENS, HIDDEN), near(), options=EAGER).explanation


def test_operators_bytes_and_work(explanation):
    first, *others = explanation.graphs[0].layers
    names = [one.name for one in first.operators]
    assert names == ["q", "k", "v", "attention", "out", "norm 1", "up", "gelu", "down", "norm 2"]
    kinds = [one.kind for one in first.operators]
    assert kinds == ["product"] * 3 + ["attention", "product", "norm", "product", "pointwise", "product", "norm"]
    up = first.operators[6]
    assert up.flops == 2 * BATCH * TOKENS * HIDDEN * INNER
    assert up.writes.nbytes == BATCH * TOKENS * INNER * 4 and up.writes.width == INNER
    assert [array.nbytes for array in up.reads if array.weight] == [HIDDEN * INNER * 4]
    share = explanation.replaced[0].share
    assert first.operators[3].flops == pytest.approx(4 * share * BATCH * 2 * TOKENS**2 * 16)
    assert [one.fingerprint for one in others] == [first.fingerprint] * 2


def test_as_the_known_layer(explanation):
    """bert-base's layer by name has the same operators, but for the residual, which Inductor joins to the norm."""
    first = explanation.graphs[0].layers[0]
    assert len(unfused(first)) + 2 == len(layer("bert-base", BATCH, TOKENS))


def test_equal_layers_are_named_together(explanation):
    ((found, names),) = explanation.segments()
    assert names == ["layers.0", "layers.1", "layers.2"]
    assert found.cost.seconds <= sum(1 for _ in found.layer.operators)
    text = str(explanation)
    assert "3 layers alike" in text and "fused" in text and "schemes are predictions" in text


def test_the_picture(explanation):
    picture = explanation.svg(0, "a100")
    assert picture.startswith("<svg") and "layers.0 on a100" in picture and "gelu" in picture
    with pytest.raises(OptionError, match="count from 0"):
        explanation.svg(1)
    with pytest.raises(OptionError, match="name one of h200"):
        explanation.svg(0, "h20")
