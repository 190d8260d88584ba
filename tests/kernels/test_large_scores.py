"""Scores and sinks as large as no model's: lse has no digits left for the logarithm of a sum, and what is made of it
must stay a share of a whole.
"""

import pytest
import torch

import weft

from .compare import BACKENDS, Case, generator, qkv

MERGED = {"two terms": weft.strided(9), "beside tokens": weft.causal() & weft.window(left=9) | weft.global_tokens(3)}


@pytest.mark.parametrize("score", [1e4, 1e6, 1e8])
@pytest.mark.parametrize("name", MERGED)
@pytest.mark.parametrize("backend", BACKENDS)
def test_means_of_ones_are_one(backend, name, score):
    """Where what several terms see is merged."""
    q, k, v = torch.zeros(3, 1, 1, 72, 16, device=BACKENDS[backend])
    q[..., 0], k[..., 0], v[:] = 4.0, score, 1.0
    out = weft.attention(q, k, v, MERGED[name] & weft.causal(), backend=backend)
    assert (out - 1).abs().max() <= 1e-6


@pytest.mark.parametrize("sink", [1.7e5, 9e8, 1.3e11])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_sink_above_all_scores_has_the_whole(backend, sink):
    device = BACKENDS[backend]
    tensors = [x.to(device) for x in qkv(generator("sink above"), (32, 32), torch.float32, heads=(1, 1), batch=1)]
    sinks = torch.tensor([sink], device=device, requires_grad=True)
    out, lse = weft.attention(*tensors, weft.causal(), sinks=sinks, return_lse=True, backend=backend)
    assert torch.autograd.grad(lse.sum(), sinks, retain_graph=True)[0] == 32
    assert torch.autograd.grad(out.sum(), sinks)[0] == 0


@pytest.mark.parametrize(("scores", "allowed"), [(4e3, 5e-4), (4e4, 5e-3)])
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_values_lose_digits_as_scores_grow(backend, scores, allowed):
    """Pairs are weighed by lse, which float32 holds to 2^-24 of itself."""
    q, k, v = qkv(generator("large scores"), (64, 64), torch.float32, heads=(1, 1), batch=1)
    q = q * (scores / (q @ k.mT / 4).abs().max())
    case = Case(weft.causal(), [q, k, v], with_lse=False, backend=backend)
    found, truth = case.weft()["dv"].double(), case.dense(torch.float64)["dv"]
    assert (found - truth).abs().max() <= allowed * truth.abs().max()
