"""What tests of the fusion share."""

import torch

import weft

# The rest is run as it is: what is tested is the graph. Tiles of small tensors are dense, so all shares are allowed.
EAGER = {"weft.inner": "eager", "weft.share": 1.0, "weft.least": 0}
TRAINED = EAGER | {"weft.inner": "aot_eager"}
M = 48


def qkv(m=M, *, batch=2, heads=3, width=16, dtype=torch.float32, grad=False):
    random = torch.Generator().manual_seed(m)
    return [torch.randn(batch, heads, m, width, generator=random).to(dtype).requires_grad_(grad) for _ in range(3)]


def near(m=M, left=7):
    """Booleans of a causal window."""
    return torch.ones(m, m, dtype=torch.bool).tril().triu(-left)


def added(live, least=-torch.inf, dtype=torch.float32):
    """The mask as numbers that are added to scores."""
    return torch.zeros(live.shape, dtype=dtype).masked_fill(~live, least)


def fused(function, *inputs, options=EAGER):
    """(the fused function, its explanation): compiled without what other tests compiled."""
    torch._dynamo.reset()
    made = weft.fuse(function, *inputs, options=options)
    return made, made.explanation


def agree(found, expected):
    """Results of float32, whose orders of sums differ."""
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-5)
