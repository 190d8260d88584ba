"""MultiheadSparseAttention: projections around attention, and steps with a cache."""

import copy
import pickle

import pytest
import torch

import weft
from weft.errors import InputError, OptionError
from weft.torch import MultiheadSparseAttention, SparseAttention

NEAR = weft.causal() & weft.window(left=3)


def made(pattern=NEAR, **options):
    torch.manual_seed(0)
    return MultiheadSparseAttention(24, 4, pattern, kv_heads=2, **options)


def test_is_projections_and_attention():
    module, x = made(softcap=5.0, sinks=torch.zeros(4)), torch.randn(2, 11, 24)
    q, k, v = (proj(x).unflatten(-1, (-1, 6)) for proj in (module.q_proj, module.k_proj, module.v_proj))
    want = module.out_proj(weft.attention(q, k, v, NEAR, layout="bshd", softcap=5.0, sinks=torch.zeros(4)).flatten(2))
    torch.testing.assert_close(module(x), want)
    module(x).sum().backward()
    assert all(p.grad is not None for p in module.parameters())


@pytest.mark.parametrize("pattern", [NEAR, weft.causal() & weft.chunks(4), weft.strided(3)], ids=str)
def test_cache(pattern):
    module, x = made(pattern).eval(), torch.randn(2, 13, 24)
    want = module(x)
    cache = module.cache(2, 16)
    with torch.no_grad():
        parts = [module(part, cache=cache) for part in x.split([5, 1, 1, 3, 1, 2], 1)]
    assert cache.length == 13
    torch.testing.assert_close(torch.cat(parts, 1), want, rtol=1e-5, atol=1e-6)
    with pytest.raises(InputError, match="room for 3 tokens"):
        module(x[:, :4], cache=cache)


def test_bias_dropout_and_copies():
    module, x = made(dropout=0.5), torch.randn(2, 11, 24)
    assert not torch.equal(module(x), module(x))
    module.eval()
    table = torch.randn(4, 9, requires_grad=True)
    biased = module(x, bias=weft.bias.relative(table))
    biased.sum().backward()
    assert table.grad.abs().sum() > 0
    for copied in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        torch.testing.assert_close(copied(x), module(x))
    module.pattern = weft.causal()
    assert not torch.allclose(module(x), copied(x))


def test_refusals():
    with pytest.raises(OptionError, match="do not divide embed_dim"):
        MultiheadSparseAttention(25, 4, NEAR)
    with pytest.raises(OptionError, match="do not divide heads"):
        MultiheadSparseAttention(24, 4, NEAR, kv_heads=3)
    with pytest.raises(OptionError, match="layout"):
        MultiheadSparseAttention(24, 4, NEAR, layout="bhsd")


def test_decode_of_a_module():
    pattern = NEAR.aligned("bottom-right")
    module = SparseAttention(pattern, sinks=torch.zeros(4), layout="bshd", softcap=5.0)
    q, k = torch.randn(2, 4, 1, 8), torch.randn(2, 2, 16, 8)
    with torch.no_grad():
        found = module.decode(q, k, k, torch.tensor([7, 9]))
        for row, n in enumerate((7, 9)):
            one = slice(row, row + 1)
            options = {"sinks": torch.zeros(4), "softcap": 5.0}
            want = weft.attention(q[one], k[one, :, :n], k[one, :, :n], pattern, **options)
            torch.testing.assert_close(found[one], want, rtol=1e-5, atol=1e-6)
