"""flash-attn's functions over weft, and weft under torch's operators of flash attention, here on the CPU's key."""

import warnings

import pytest
import torch
from torch.nn.attention import varlen

from weft.errors import OptionError, UnsupportedError
from weft.integrations import flash_dispatch
from weft.integrations.flash_attn import flash_attn_func, flash_attn_varlen_func, register

LENGTHS, KEY_LENGTHS = (5, 1, 9), (5, 4, 12)


def sums(lengths):
    return torch.tensor([0, *lengths]).cumsum(0).int()


def seen(m, n, causal, window):
    """FlashAttention's mask: the last query is beside the last key."""
    i, k = torch.arange(m)[:, None] + n - m, torch.arange(n)
    left, right = window[0], 0 if causal else window[1]
    mask = torch.ones(m, n, dtype=torch.bool)
    mask &= (k >= i - left) if left >= 0 else mask
    return mask & (k <= i + right) if right >= 0 else mask


def oracle(q, k, v, causal=False, window=(-1, -1), softcap=0.0, slopes=None):
    """(M, H, D) in float64, straight from the definition; (out, lse)."""
    q, k, v = (x.double().transpose(0, 1) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[0] // x.shape[0], 0) for x in (k, v))
    m, n = q.shape[1], k.shape[1]
    s = q @ k.mT * q.shape[2] ** -0.5
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    if slopes is not None:
        s = s - slopes.double()[:, None, None] * (torch.arange(m)[:, None] + n - m - torch.arange(n)).abs()
    s = s.masked_fill(~seen(m, n, causal, window), -torch.inf)
    return (s.softmax(-1).nan_to_num() @ v).transpose(0, 1), s.logsumexp(-1)


def qkv(queries, keys, heads=4):
    torch.manual_seed(0)
    shapes = (queries, heads, 8), (keys, 2, 8), (keys, 2, 8)
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


OPTIONS = [
    {},
    {"causal": True},
    {"causal": True, "window_size": (3, 0)},
    {"window_size": (2, 1)},
    {"window_size": (-1, 2), "softcap": 5.0},
    {"causal": True, "alibi_slopes": torch.tensor([0.5, 0.25, 0.1, 0.0])},
    {"alibi_slopes": torch.tensor([0.5, 0.25, 0.1, 0.0])},
]


def of_oracle(options):
    names = {"window_size": "window", "alibi_slopes": "slopes"}
    return {names.get(name, name): x for name, x in options.items()}


@pytest.mark.parametrize("options", OPTIONS)
def test_varlen(options):
    q, k, v = qkv(sum(LENGTHS), sum(KEY_LENGTHS))
    split = zip(q.split(LENGTHS), k.split(KEY_LENGTHS), v.split(KEY_LENGTHS), strict=True)
    found = [oracle(*one, **of_oracle(options)) for one in split]
    want, want_lse = torch.cat([one[0] for one in found]), torch.cat([one[1] for one in found], 1)
    given = (q, k, v, sums(LENGTHS), sums(KEY_LENGTHS), 9, 12)
    out, lse, probabilities = flash_attn_varlen_func(*given, return_attn_probs=True, **options)
    assert probabilities is None
    torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(lse.double(), want_lse, rtol=1e-5, atol=1e-5)
    weights = torch.randn(out.shape)
    got = torch.autograd.grad(out, (q, k, v), weights)
    for x, y in zip(got, torch.autograd.grad(want, (q, k, v), weights.double()), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", OPTIONS)
def test_dense(options):
    q, k, v = qkv(6, 9)
    want, want_lse = oracle(q, k, v, **of_oracle(options))
    out, lse, _ = flash_attn_func(q[None], k[None], v[None], return_attn_probs=True, **options)
    torch.testing.assert_close(out[0].double(), want, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(lse[0].double(), want_lse, rtol=1e-5, atol=1e-5)
    assert torch.equal(flash_attn_func(q[None], k[None], v[None], 0.0, **options), out)


def test_pages():
    """Keys in pages, as servers keep them: page numbers in any order."""
    q, k, v = (x.detach() for x in qkv(sum(LENGTHS), sum(KEY_LENGTHS)))
    table = torch.tensor([[3], [0], [2]], dtype=torch.int32)
    pages = [torch.randn(4, 16, 2, 8) for _ in range(2)]
    for x, page in zip((k, v), pages, strict=True):
        for number, part in zip(table[:, 0].tolist(), x.split(KEY_LENGTHS), strict=True):
            page[number, : len(part)] = part
    given = (sums(LENGTHS), sums(KEY_LENGTHS), 9, 12)
    want = flash_attn_varlen_func(q, k, v, *given, causal=True)
    got = flash_attn_varlen_func(q, *pages, *given, causal=True, block_table=table)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_dropout():
    q, k, v = qkv(4, 4)
    given = (q, k, v, sums([4]), sums([4]), 4, 4)
    assert not torch.equal(flash_attn_varlen_func(*given, 0.5), flash_attn_varlen_func(*given, 0.5))


def test_refusals():
    q, k, v = qkv(4, 4)
    with pytest.raises(OptionError, match="qv"):
        flash_attn_func(q[None], k[None], v[None], qv=1)
    with pytest.raises(UnsupportedError, match="alibi_slopes"):
        flash_attn_func(q[None], k[None], v[None], alibi_slopes=torch.zeros(1, 4))
    with pytest.raises(OptionError, match="given by place too"):
        flash_attn_func(q[None], k[None], v[None], 0.0, dropout_p=0.5)
    for window in (3, (1, 2, 3), (1.5, 0), "ab"):
        with pytest.raises(OptionError, match="a window is two integers"):
            flash_attn_func(q[None], k[None], v[None], window_size=window)


def test_longest_documents_may_be_left_out():
    """Callers that do not know them pass None."""
    q, k, v = qkv(4, 4)
    given = (q, k, v, sums([1, 3]), sums([1, 3]))
    assert torch.equal(flash_attn_varlen_func(*given, None, None), flash_attn_varlen_func(*given, 3, 3))


# ---- torch's operators -----------------------------------------------------------------------------------------------
@pytest.fixture
def installed():
    handle = flash_dispatch.install("CPU")
    yield
    handle.remove()


@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (3, 0), (2, 1)])
def test_varlen_attn_of_torch(installed, window):
    q, k, v = qkv(sum(LENGTHS), sum(LENGTHS), heads=2)
    split = zip(q.split(LENGTHS), k.split(LENGTHS), v.split(LENGTHS), strict=True)
    want = torch.cat([oracle(*one, window=window)[0] for one in split])
    options = {"window_size": window, "return_aux": varlen.AuxRequest(lse=True)}
    out, lse = varlen.varlen_attn(q, k, v, sums(LENGTHS), sums(LENGTHS), 9, 9, **options)
    torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-5)
    assert lse.shape == (2, sum(LENGTHS))
    weights = torch.randn(out.shape)
    got = torch.autograd.grad(out, (q, k, v), weights)
    for x, y in zip(got, torch.autograd.grad(want, (q, k, v), weights.double()), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)
    written = torch.empty_like(q)
    with torch.no_grad():
        varlen.varlen_attn_out(written, q, k, v, sums(LENGTHS), sums(LENGTHS), 9, 9, window_size=window)
    torch.testing.assert_close(written, out)


def test_operators_of_sdpa(installed):
    q, k, v = (x.detach()[None].transpose(1, 2).contiguous() for x in qkv(6, 6, heads=2))
    out, lse, *_, state, unused, _ = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    want = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=True)
    torch.testing.assert_close(out, want, rtol=1e-5, atol=1e-5)
    sums_of = torch.tensor([0])
    given = (out, q, k, v, out, lse, sums_of, sums_of, 6, 6, 0.0, True, state, unused)
    got = torch.ops.aten._scaled_dot_product_flash_attention_backward(*given)
    for x, y in zip(got, torch.autograd.grad(want, leaves, out), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)


def test_what_is_not_served_goes_to_the_one_before():
    """A kernel is there before; weft hands on what it does not serve, and says so once."""
    library = torch.library.Library("aten", "IMPL")
    met = []

    def before(q, k, v, *args, **options):
        met.append(options)
        return q.clone(), q.new_zeros(2, 4), *flash_dispatch._rest(q)

    library.impl("_flash_attention_forward", before, "CPU")
    handle = flash_dispatch.install("CPU")
    try:
        q, k, v = (x.detach() for x in qkv(4, 4, heads=2))
        given = (q, k, v, sums([4]), sums([4]), 4, 4, 0.0, True, False)
        torch.ops.aten._flash_attention_forward(*given)
        assert not met
        with pytest.warns(UserWarning, match="seqused_k is given"):
            torch.ops.aten._flash_attention_forward(*given, seqused_k=torch.tensor([4]).int())
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            torch.ops.aten._flash_attention_forward(*given, seqused_k=torch.tensor([4]).int())
        assert len(met) == 2
    finally:
        handle.remove()


def test_registered_and_not_activated():
    name = register("WEFT-TEST")
    assert name in torch.nn.attention.list_flash_attention_impls()
    assert torch.nn.attention.current_flash_attention_impl() is None
