"""What the front end translates, run by Triton's kernels under its interpreter: a few small calls beside the CPU's.

The interpreter is chosen when triton is imported: tests/triton/test_interpreted.py runs them in a process of its own.
"""

import pytest
import torch

import weft
from weft.settings import interpreted

M, LAST = 40, "bottom-right"
SUMS, KEY_SUMS = torch.tensor([0, 13, 13, 40]), torch.tensor([0, 20, 26, 50])


def tokens(*shape, count=3):
    random = torch.Generator().manual_seed(sum(shape))
    return [torch.randn(shape, generator=random) for _ in range(count)]


def packed(q, k, v, **how):
    pattern = (weft.causal() & weft.window(9)).aligned(LAST)
    return weft.varlen_attention(q, k, v, SUMS, KEY_SUMS, pattern, **how)


CALLS = {  # name -> (tensors, the call)
    "bshd": (
        tokens(1, M, 2, 16),
        lambda *x, **how: weft.attention(
            *x, weft.causal() & weft.window(9), layout="bshd", softcap=2.0, sinks=torch.tensor([0.5, -1.0]), **how
        ),
    ),
    "thd": (tokens(M, 2, 16), lambda *x, **how: weft.attention(*x, weft.documents([13, 27]), layout="thd", **how)),
    "grid": (
        tokens(1, 5, 8, 1, 16),
        lambda *x, **how: weft.attention(*x, weft.neighborhood((5, 8), 3), layout="bshd", **how),
    ),
    "extra keys": (
        tokens(1, 2, M, 16, count=5),
        lambda q, k, v, ek, ev, **how: weft.attention(
            q, k, v, weft.causal(offset=-3), extra_keys=ek[:, :, :7], extra_values=ev[:, :, :7], **how
        ),
    ),
    "a tensor": (
        tokens(1, 2, M, 16),
        lambda *x, **how: weft.attention(*x, torch.ones(M, M, dtype=torch.bool).tril(), **how),
    ),
    "documents of other lengths": ([*tokens(40, 2, 16, count=1), *tokens(50, 2, 16, count=2)], packed),
}


def results(name, backend):
    """Out, lse, gradients."""
    tensors, call = CALLS[name]
    leaves = [x.clone().requires_grad_() for x in tensors]
    out, lse = call(*leaves, return_lse=True, backend=backend)
    seed = torch.linspace(-1, 1, out.numel()).view(out.shape)
    live = torch.where(lse.isfinite(), lse, 0.0)
    return [out, lse, *torch.autograd.grad((out * seed).sum() + live.sum(), leaves)]


@pytest.mark.skipif(not interpreted(), reason="tests/triton/test_interpreted.py runs these")
@pytest.mark.parametrize("name", CALLS)
def test_calls(name):
    for got, expected in zip(results(name, "triton"), results(name, "cpu"), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
