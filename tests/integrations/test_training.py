"""Small classifiers of real pictures train through the drop-ins as they do with a dense mask: scikit-learn's digits,
8 x 8 pixels, one token each.
"""

from importlib.util import find_spec
from itertools import product

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

import weft.integrations.natten as natten
from weft.integrations import sdpa

from .test_natten import dense

pytestmark = [
    pytest.mark.more,
    pytest.mark.skipif(find_spec("sklearn") is None, reason="needs scikit-learn, which is not installed"),
]
STEPS, BATCH, DIM, HEADS, SIDE = 100, 32, 32, 4, 8


class DenseNeighborhood(nn.Module):
    """NeighborhoodAttention2D by torch, with a dense mask; the same state keys."""

    def __init__(self, kernel, dilation):
        super().__init__()
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        two = (SIDE, SIDE), (kernel,) * 2, (1, 1), (dilation,) * 2, (False, False)
        self.mask = dense(*two)

    def forward(self, x):
        q, k, v = self.qkv(x).view(len(x), SIDE**2, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        out = scaled_dot_product_attention(q, k, v, attn_mask=self.mask)
        return self.proj(out.transpose(1, 2).reshape(x.shape))


class Windows(nn.Module):
    """Attention inside windows of 4 x 4, the second time shifted by half a window, by a boolean mask (Swin)."""

    def __init__(self, shift):
        super().__init__()
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        own = [((y + shift) // 4, (x + shift) // 4) for y, x in product(range(SIDE), repeat=2)]
        self.mask = torch.tensor([[a == b for b in own] for a in own])

    forward = DenseNeighborhood.forward


class Classifier(nn.Module):
    def __init__(self, attentions):
        super().__init__()
        self.embed = nn.Linear(1, DIM)
        self.place = nn.Parameter(0.1 * torch.randn(SIDE, SIDE, DIM))
        self.attentions = nn.ModuleList(attentions)
        self.norms = nn.ModuleList([nn.LayerNorm(DIM) for _ in range(2 * len(attentions))])
        self.mlps = nn.ModuleList(
            [nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM)) for _ in attentions]
        )
        self.head = nn.Linear(SIDE * SIDE * DIM, 10)

    def forward(self, pictures):
        x = self.embed(pictures.unsqueeze(-1)) + self.place
        for i, (attention, mlp) in enumerate(zip(self.attentions, self.mlps, strict=True)):
            x = x + attention(self.norms[2 * i](x))
            x = x + mlp(self.norms[2 * i + 1](x))
        return self.head(x.flatten(1))


def losses(model):
    """The loss of each step, and the share of the pictures kept back that are classified right."""
    from sklearn import datasets

    digits = datasets.load_digits()
    pictures, labels = torch.from_numpy(digits.images) / 16, torch.from_numpy(digits.target)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    generator, found = torch.Generator().manual_seed(1), []
    for _ in range(STEPS):
        some = torch.randint(1500, (BATCH,), generator=generator)
        loss = cross_entropy(model(pictures[some]), labels[some])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    with torch.no_grad():
        right = (model(pictures[1500:]).argmax(-1) == labels[1500:]).double().mean().item()
    return torch.tensor(found), right


def models():
    """A DiNAT-like model with weft's NATTEN, and with a dense mask and the same weights."""
    torch.manual_seed(0)
    ours = Classifier([natten.NeighborhoodAttention2D(DIM, HEADS, 3, dilation=d) for d in (1, 2)]).double()
    theirs = Classifier([DenseNeighborhood(3, d) for d in (1, 2)]).double()
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def test_a_neighbourhood_classifier():
    (ours, right), (theirs, _) = map(losses, models())
    assert (ours - theirs).abs().max() < 1e-6
    assert ours[-10:].mean() < 0.3 * ours[0] and right > 0.8


def test_a_window_classifier():
    torch.manual_seed(0)
    theirs = Classifier([Windows(0), Windows(2)]).double()
    ours = Classifier([Windows(0), Windows(2)]).double()
    ours.load_state_dict(theirs.state_dict())
    expected, _ = losses(theirs)
    with sdpa.in_place_of_torch() as served:
        found, right = losses(ours)
    assert served.calls == 2 * (STEPS + 1)
    assert (found - expected).abs().max() < 1e-6
    assert found[-10:].mean() < 0.3 * found[0] and right > 0.8
