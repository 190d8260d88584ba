"""The CPU's soft maximum subtracts no maximum unless a row needs it: rows far beyond float32's exponents stay right."""

import pytest
import torch

import weft
from weft.kernels.cpu import forward

from .dense import attention

PATTERNS = [
    weft.window(40, 40),
    weft.causal(),
    weft.dilated(20, 20, 3),
    weft.longformer(20, 3),
    weft.neighborhood((20, 30), 5),
]
SCALES = {  # of q and of v, for some rows each
    "plain": (1.0, 1.0),
    "sums overflow": (1e3, 1.0),
    "products overflow": (1.0, 3e37),
    "both": (30.0, 1e36),
    "small values": (1.0, 1e-30),
}


def tensors(scales):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, 600, 16, generator=generator) for _ in range(3))
    q[:, :, 100:130] *= scales[0]
    q[:, 1, 300:] *= scales[0]
    v[:, :, 200:260] *= scales[1]
    return q, k, v


def both(q, k, v, pattern):
    """(out, lse) of weft, and of dense attention in float64."""
    live = torch.from_numpy(pattern.to_dense(600))
    return weft.attention(q, k, v, pattern, return_lse=True), attention(*(x.double() for x in (q, k, v)), live, {})


@pytest.mark.parametrize("scales", SCALES.values(), ids=SCALES)
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_large_and_small_numbers(pattern, scales):
    q, k, v = tensors(scales)
    found, expected = both(q, k, v, pattern)
    weight = v.abs().amax() if scales[1] > 1 else 1.0
    torch.testing.assert_close(found[0].double() / weight, expected[0] / weight, atol=2e-4, rtol=2e-3)
    torch.testing.assert_close(found[1].double(), expected[1], atol=2e-4, rtol=2e-6)


@pytest.mark.parametrize("away", [-200.0, -30.0, 30.0, 200.0])
def test_all_scores_of_a_row_far_from_zero(away):
    """Then no maximum subtracted means that all powers vanish or overflow."""
    q, k, v = tensors((1.0, 1.0))
    k[..., 0], q[..., 0] = 1.0, 4 * away  # the scale is 1 / 4
    found, expected = both(q, k, v, PATTERNS[0])
    torch.testing.assert_close(found[0].double(), expected[0], atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(found[1].double(), expected[1], atol=1e-3, rtol=1e-5)


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_a_row_that_needs_its_maximum_changes_no_bit_of_its_neighbours(pattern):
    q, k, v = tensors((1.0, 1.0))
    large = q.clone()
    large[:, :, 77] *= 1e4
    (out, lse), (other, other_lse) = (weft.attention(x, k, v, pattern, return_lse=True) for x in (q, large))
    rest = torch.arange(600) != 77
    assert torch.equal(out[:, :, rest], other[:, :, rest])
    assert torch.equal(lse[:, :, rest], other_lse[:, :, rest])
    assert other[:, :, 77].isfinite().all()


def test_small_scores_take_the_short_way(monkeypatch):
    """With scores as they mostly are the maximum is never computed."""

    def refuse(*_):
        raise AssertionError("the maximum was subtracted")

    monkeypatch.setattr(forward, "_attend", refuse)
    weft.attention(*tensors((1.0, 1.0)), weft.window(40, 40))
