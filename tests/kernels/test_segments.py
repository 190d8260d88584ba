"""Modules whose products, gates and rotations the templates compute, through weft.fuse, interpreted in float32."""

import pytest
import torch

import weft

from .compare import BACKENDS, generator

pytestmark = pytest.mark.skipif("triton" not in BACKENDS, reason="other backends take torch's operations")
DEVICE = BACKENDS.get("triton")
F = torch.nn.functional
OPTIONS = {"weft.inner": "eager", "weft.templates": "always"}
WIDE, INNER, D, TOKENS = 64, 96, 32, 40


class Block(torch.nn.Module):
    """A layer as Llama has it, but for norms."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (torch.nn.Linear(WIDE, n, bias=False) for n in (WIDE, D, D))
        self.out, self.down = torch.nn.Linear(WIDE, WIDE, bias=False), torch.nn.Linear(INNER, WIDE, bias=False)
        self.gate, self.up = (torch.nn.Linear(WIDE, INNER, bias=False) for _ in range(2))

    def forward(self, x, cos, sin):
        q, k, v = (one(x).view(*x.shape[:2], -1, D).transpose(1, 2) for one in (self.q, self.k, self.v))
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        q, k = ((y * cos) + (torch.cat((-y[..., D // 2 :], y[..., : D // 2]), -1) * sin) for y in (q, k))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(out.transpose(1, 2).reshape(x.shape))
        return x + self.down(F.silu(self.gate(x)) * self.up(x))


class Conv1D(torch.nn.Module):
    """A part of GPT-2, whose weights are (k, n)."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias = torch.nn.Parameter(torch.empty(WIDE, INNER)), torch.nn.Parameter(torch.empty(INNER))

    def forward(self, x):
        y = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(*x.shape[:-1], INNER)
        return F.gelu(y, approximate="tanh")


def made(kind):
    module = kind().to(DEVICE)
    random = generator(kind.__name__)
    for one in module.parameters():
        one.data = torch.randn(one.shape, generator=random).to(DEVICE) / 8
    x = torch.randn(2, TOKENS, WIDE, generator=random).to(DEVICE)
    angle = torch.arange(TOKENS)[None, :, None] * torch.rand(1, 1, D // 2, generator=random)
    tables = [f(torch.cat((angle, angle), -1)).to(DEVICE) for f in (torch.cos, torch.sin)]
    return module, (x, *tables) if kind is Block else (x,)


@pytest.mark.parametrize(("kind", "fused"), [(Block, 4), (Conv1D, 1)])
def test_fused_modules_give_the_same(kind, fused):
    module, inputs = made(kind)
    torch._dynamo.reset()
    fast = weft.fuse(module, options=OPTIONS, dynamic=False)
    with torch.no_grad():
        torch.testing.assert_close(fast(*inputs), module(*inputs), rtol=1e-4, atol=1e-4)
        assert sum(one.fused for one in fast.explanation.graphs[0].segments) == fused, str(fast.explanation)
        next(module.parameters()).mul_(2)  # weights are read at each call
        torch.testing.assert_close(fast(*inputs), module(*inputs), rtol=1e-4, atol=1e-4)
