"""Norms of heads before attention: known by their values, whatever their spelling; and what is none."""

import pytest
import torch
from tests.fusion.helpers import agree
from tests.fusion.test_segments import WIDE, D, X, chosen, graph_of, halves, tables

from weft.fusion.place import place_segments
from weft.fusion.rotations import projections_in
from weft.fusion.settings import Settings

F = torch.nn.functional


def qwen(x, weight):
    y = x.to(torch.float32)
    return weight * (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


NORMS = {
    "qwen": (qwen, 1e-6),
    "rms_norm": (lambda x, w: F.rms_norm(x, (D,), w, 1e-2), 1e-2),
    "without epsilon": (lambda x, w: x * torch.rsqrt((x * x).mean(-1, keepdim=True)) * w, 0.0),
    "one more": (lambda x, w: qwen(x, w + 1), None),  # Gemma's, whose weight is another number
    "layer norm": (lambda x, w: F.layer_norm(x, (D,), w), None),
    "squares": (lambda x, w: x * x.pow(2).mean(-1, keepdim=True) * w, None),
}


class Normed(torch.nn.Module):
    """Attention's products, heads of query and key normed and perhaps rotated, and a causal attention."""

    def __init__(self, norm, turn=halves, other=None):
        super().__init__()
        torch.manual_seed(2)
        self.norms, self.turn = (norm, other or norm), turn
        self.q, self.k, self.v = (torch.nn.Linear(WIDE, n, bias=False) for n in (2 * D, 2 * D, 2 * D))
        self.weights = torch.nn.ParameterList(torch.rand(D) + 0.5 for _ in range(2))

    def forward(self, x, cos, sin):
        q, k, v = (one(x).view(*x.shape[:2], -1, D) for one in (self.q, self.k, self.v))
        q, k = (norm(y, w) for norm, y, w in zip(self.norms, (q, k), self.weights, strict=True))
        q, k, v = (y.transpose(1, 2) for y in (q, k, v))
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        if self.turn is not None:
            q, k = ((y * cos) + (self.turn(y) * sin) for y in (q, k))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return out.transpose(1, 2).flatten(2)


@pytest.mark.parametrize("turn", [halves, None], ids=["rotated", "plain"])
@pytest.mark.parametrize("name", NORMS)
def test_norms_are_known_by_their_values(name, turn):
    norm, epsilon = NORMS[name]
    found = list(projections_in(graph_of(Normed(norm, turn), X, *tables()).graph))
    if epsilon is None:
        assert not found
        return
    (one,) = found
    assert one.spec.normed and one.spec.tables == (turn is not None) and one.spec.epsilon == pytest.approx(epsilon)
    assert len(one.inputs) == 4 + 2 + 2 * one.spec.tables and len(one.outputs) == 3


def test_two_epsilons_are_no_kernel():
    module = Normed(NORMS["qwen"][0], other=NORMS["rms_norm"][0])
    assert not list(projections_in(graph_of(module, X, *tables()).graph))


@pytest.mark.parametrize("turn", [halves, None], ids=["rotated", "plain"])
def test_a_rewritten_graph_gives_the_same(turn, monkeypatch):
    """The operator runs the unfused graph here, laid out as the kernel would."""
    monkeypatch.setattr("weft.fusion.kernels.reason_against", lambda *_: "there is no card")
    module, inputs, placed = Normed(qwen, turn), (X, *tables()), []

    def rewritten(graph, given):
        placed.extend(place_segments(graph, Settings(inner="eager"), "", None, chosen))
        return graph.forward

    torch._dynamo.reset()
    with torch.no_grad():
        agree(torch.compile(module, backend=rewritten, dynamic=False)(*inputs), module(*inputs))
    assert [one.what for one in placed] == [
        "query, key and value, normed by head" + ", rotated by position" * bool(turn)
    ]
