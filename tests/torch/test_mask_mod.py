"""Patterns as torch's BlockMask: lists of blocks and mask_mod beside the dense mask, and back again by recognition."""

import pytest
import torch
from tests.tiers import every, sample
from torch.nn.attention import flex_attention as theirs

import weft
from weft.errors import AlignmentError
from weft.testing.cases import CASES, At

SIZES = [(40, 40), (130, 130), (70, 100)]
BLOCK = 16, 32


def both(name, m, n):
    """A pattern, and its dense mask (B, H, M, N)."""
    try:
        pattern = CASES[name].make(At(m, n))
        dense = torch.from_numpy(pattern.to_dense(m, n))
    except ValueError:
        pytest.skip("no such lengths")
    return pattern, dense.expand(*(count or 1 for count in pattern.extent()), m, n)


@pytest.mark.parametrize(("m", "n"), sample(SIZES, (70, 100), (40, 40)))
@pytest.mark.parametrize("name", every(3, CASES))
def test_every_pattern(name, m, n):
    pattern, dense = both(name, m, n)
    made = pattern.to_block_mask(m, n, block_size=BLOCK, device="cpu")
    batch, heads = dense.shape[:2]
    assert type(made) is theirs.BlockMask
    assert torch.equal(theirs.create_mask(made.mask_mod, batch, heads, m, n, device="cpu"), dense)
    wanted = theirs.create_block_mask(lambda b, h, q, k: dense[b, h, q, k], batch, heads, m, n, "cpu", BLOCK)
    assert made.shape == wanted.shape
    for field in theirs.BlockMask._TENSOR_ATTRS:
        x, y = getattr(made, field), getattr(wanted, field)
        assert (x is None) == (y is None)
        assert x is None or torch.equal(x, y)


@pytest.mark.parametrize("name", every(6, CASES))
def test_recognised_again(name):
    pattern, dense = both(name, 130, 130)
    mask_mod = pattern.to_block_mask(130, device="cpu").mask_mod
    batch, heads = dense.shape[:2]
    again = weft.recognize(mask_mod, size=(130, 130), batch=batch, heads=heads).pattern
    assert torch.equal(torch.from_numpy(again.to_dense(130)).expand(dense.shape), dense)


@pytest.mark.more
@pytest.mark.parametrize("name", ["bits", "documents", "neighborhood_2d", "longformer_global", "per_head", "padding"])
def test_computed_by_torch(name):
    pattern, dense = both(name, 130, 130)
    torch._dynamo.reset()
    batch, heads = dense.shape[:2]
    q, k, v = torch.randn(3, batch, heads, 130, 16, dtype=torch.float64)
    out = theirs.flex_attention(q, k, v, block_mask=pattern.to_block_mask(130, device="cpu"))
    torch.testing.assert_close(out, weft.attention(q, k, v, pattern))


def test_as_a_mask_of_weft():
    pattern = weft.causal() & weft.window(left=9)
    q, k, v = torch.randn(3, 1, 2, 64, 8, dtype=torch.float64)
    out = weft.attention(q, k, v, pattern.to_block_mask(64, block_size=16, device="cpu"))
    torch.testing.assert_close(out, weft.attention(q, k, v, pattern))


def test_lengths_that_a_pattern_does_not_have():
    with pytest.raises(AlignmentError):
        weft.causal().to_block_mask(40, 60)
