"""What the tests of the front end share."""

import torch


def qkv(m=16, n=None, *, batch=2, heads=(4, 2), dims=(8, 8), dtype=torch.float32, grad=False, seed=0):
    """q (batch, heads[0], m, dims[0]), k (batch, heads[1], n, dims[0]), v (batch, heads[1], n, dims[1])."""
    random = torch.Generator().manual_seed(1000 * seed + m)
    n = m if n is None else n
    shapes = (heads[0], m, dims[0]), (heads[1], n, dims[0]), (heads[1], n, dims[1])
    return [
        torch.randn(batch, *s, generator=random, dtype=torch.float64).to(dtype).requires_grad_(grad) for s in shapes
    ]


def tokens_first(x):
    """The same numbers, (B, S, H, D) in memory."""
    grad, x = x.requires_grad, x.detach().transpose(1, 2).contiguous().transpose(1, 2)
    return x.requires_grad_(grad)
