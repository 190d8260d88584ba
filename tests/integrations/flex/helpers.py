"""torch's own eager FlexAttention, with gradients, which its front end refuses on the CPU."""

import math

import torch
from torch._higher_order_ops.flex_attention import math_attention
from torch.nn.attention import flex_attention as theirs
from torch.nn.attention.flex_attention import noop_mask


def tensors(batch=2, heads=4, m=96, n=None, d=8, kv_heads=None, grad=True, seed=0):
    random = torch.Generator().manual_seed(seed)
    shapes = (heads, m), *((kv_heads or heads, n or m),) * 2
    made = [torch.randn(batch, h, s, d, generator=random, dtype=torch.float64) for h, s in shapes]
    return [x.requires_grad_(grad) for x in made]


def reference(q, k, v, score_mod=None, mask_mod=None, scale=None):
    """(out, lse) by torch's eager mathematics."""
    block_mask = (q.shape[2], k.shape[2], *[None] * 12, mask_mod or noop_mask)
    scale = scale or q.shape[-1] ** -0.5
    out, lse, _ = math_attention(q, k, v, score_mod or theirs._identity, block_mask, scale, {"OUTPUT_MAX": False})
    return out, lse * math.log(2)  # kernels count in powers of two


def gradients(out, leaves):
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).reshape(out.shape).sin()
    return torch.autograd.grad((out * weights).sum(), leaves)
