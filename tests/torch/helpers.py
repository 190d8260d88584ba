"""What the tests of the front end share."""

import torch

import weft

# Dynamo of torch 2.11 repeats only the type of an exception, and compiles a graph for each structure of a pattern.
EARLY_DYNAMO = torch.__version__.startswith(("2.11", "2.12"))


def as_dynamo_says(message):
    """The pattern of what Dynamo says where compiled code raises an error of weft with such a message."""
    return r"raised exception \w+Error" if EARLY_DYNAMO else message


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


def check_unseen_keys_are_not_read(attend):
    """Of a step of decoding. attend(tensors, pattern) -> (out, lse)."""
    pattern = (weft.causal() & (weft.window(left=63) | weft.prefix(5))).aligned("bottom-right")
    tensors = qkv(1, 300, batch=1, dims=(16, 16))
    for x in tensors[1:]:
        x[:, :, 5:230] = torch.nan
    out, lse = attend(tensors, pattern)
    assert out.isfinite().all()
    assert lse.isfinite().all()
