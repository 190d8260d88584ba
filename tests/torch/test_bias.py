"""weft.bias: each against the tensor (B, Hq, M, N) that it means, with gradients; T5's, Swin's and NATTEN's rules."""

import math

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.checkpoint import checkpoint

import weft

from .helpers import qkv

HEADS = (4, 2)
WINDOW = weft.causal() & weft.window(left=9)


def table(*shape, seed=0, dtype=torch.float64):
    random = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=random, dtype=torch.float64).to(dtype).requires_grad_()


def dense(tensors, mask, added):
    """(out, lse) of scores with a tensor added, by autograd."""
    q, k, v = tensors
    group = q.shape[1] // k.shape[1]
    s = q @ k.repeat_interleave(group, 1).mT * q.shape[3] ** -0.5 + added
    s = s.masked_fill(~torch.from_numpy(mask.to_dense(q.shape[2], k.shape[2])), -torch.inf)
    lse = s.logsumexp(-1)
    empty = (lse == -torch.inf)[..., None]
    p = torch.where(s == -torch.inf, 0.0, torch.exp(s - lse[..., None].masked_fill(empty, 0.0)))
    return p @ v.repeat_interleave(group, 1), lse


def compare(tensors, mask, bias, added, learned):
    out, lse = weft.attention(*tensors, mask, bias=bias, return_lse=True)
    expected, expected_lse = dense(tensors, mask, added)
    torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(lse, expected_lse, rtol=1e-10, atol=1e-10)
    seed = torch.randn_like(out)
    found = torch.autograd.grad((out * seed).sum() + lse[lse > -torch.inf].sum(), (*tensors, *learned))
    wanted = torch.autograd.grad((expected * seed).sum() + expected_lse[lse > -torch.inf].sum(), (*tensors, *learned))
    for x, y in zip(found, wanted, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-10, atol=1e-10)


def distances(m, n, shift=0):
    return torch.arange(n) - torch.arange(m)[:, None] - shift


@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("reach", [3, 40])
@pytest.mark.parametrize("sizes", [(30, 30), (17, 33), (33, 17)])
def test_relative(heads, reach, sizes):
    learned = table(heads, 2 * reach + 1)
    mask = weft.causal(align="bottom-right") & weft.window(left=9, align="bottom-right")
    d = distances(*sizes, sizes[1] - sizes[0]).clamp(-reach, reach) + reach
    compare(
        qkv(*sizes, heads=HEADS, dtype=torch.float64, grad=True),
        mask,
        weft.bias.relative(learned),
        learned[:, d],
        [learned],
    )


@pytest.mark.parametrize(
    "shape", [(2, 4, 30, 30), (1, 4, 30, 30), (2, 1, 30, 30), (4, 30, 30), (30, 30), (2, 1, 1, 30), (30, 1)]
)
def test_dense(shape):
    learned = table(*shape)
    tensors = qkv(30, heads=HEADS, dtype=torch.float64, grad=True)
    compare(tensors, WINDOW, learned, learned, [learned])
    live = torch.from_numpy(WINDOW.to_dense(30)).expand(2, 4, 30, 30)
    (grad,) = torch.autograd.grad(weft.attention(*tensors, WINDOW, bias=learned).square().sum(), learned)
    assert (grad[~live.sum_to_size(*(1,) * (4 - len(shape)), *shape).bool().view(shape)] == 0).all()


def test_a_bias_of_minus_infinity_masks():
    q, k, v = qkv(30, heads=HEADS, dtype=torch.float64)
    bias = torch.zeros(30, 30, dtype=torch.float64).masked_fill(~torch.from_numpy(WINDOW.to_dense(30)), -torch.inf)
    torch.testing.assert_close(weft.attention(q, k, v, weft.full(), bias=bias), weft.attention(q, k, v, WINDOW))
    bias[5] = -torch.inf
    out, lse = weft.attention(q, k, v, weft.full(), bias=bias, return_lse=True)
    assert (out[:, :, 5] == 0).all() and (lse[:, :, 5] == -torch.inf).all() and torch.isfinite(out).all()


def test_nothing_is_read_where_no_pair_is_live():
    bias = torch.full((30, 30), torch.nan, dtype=torch.float64)
    live = torch.from_numpy(WINDOW.to_dense(30))
    bias[live] = torch.randn(int(live.sum()), dtype=torch.float64)
    tensors = qkv(30, heads=HEADS, dtype=torch.float64, grad=True)
    out = weft.attention(*tensors, WINDOW, bias=bias.requires_grad_())
    grads = torch.autograd.grad(out.sum(), (*tensors, bias))
    assert all(torch.isfinite(x).all() for x in (out, *grads))


@pytest.mark.parametrize(
    ("shape", "size", "dilation"),
    [((30,), (5,), 1), ((5, 6), (3, 3), 1), ((8, 10), (3, 5), 2), ((2, 3, 5), (1, 3, 3), 1)],
)
def test_grid(shape, size, dilation):
    """NATTEN's: indexed by the distance of neighbours, of which there are 2 * size - 1 at the borders."""
    learned = table(4, *(2 * n - 1 for n in size))
    places = torch.stack(torch.meshgrid(*map(torch.arange, shape), indexing="ij")).flatten(1)
    d = (places[:, None, :] - places[:, :, None]) // dilation  # (axes, q, k)
    d = [(x + n - 1).clamp(0, 2 * n - 2) for x, n in zip(d, size, strict=True)]
    mask = weft.neighborhood(shape, size, dilation=dilation)
    bias = weft.bias.grid(learned, shape, dilation)
    compare(qkv(math.prod(shape), heads=HEADS, dtype=torch.float64, grad=True), mask, bias, learned[:, *d], [learned])


def test_swin():
    """Its table and index as Swin's code makes them, in windows of 4 x 4 on a map of 8 x 8."""
    learned, w = table(49, 4), 4
    coords = torch.stack(torch.meshgrid(torch.arange(w), torch.arange(w), indexing="ij")).flatten(1)
    relative = (coords[:, :, None] - coords[:, None, :]).permute(1, 2, 0) + w - 1
    index = relative[:, :, 0] * (2 * w - 1) + relative[:, :, 1]  # of query minus key
    added = torch.zeros(4, 64, 64, dtype=torch.float64)
    places = torch.arange(64).view(2, 4, 2, 4).permute(0, 2, 1, 3).reshape(4, 16)
    for window in places:
        added = added.index_put(
            (torch.arange(4)[:, None, None], window[:, None], window), learned[index].permute(2, 0, 1)
        )
    bias = weft.bias.grid(learned.flip(0).T.reshape(4, 7, 7), (8, 8))
    mask = weft.product([weft.chunks(4), weft.chunks(4)], (8, 8))
    compare(qkv(64, heads=HEADS, dtype=torch.float64, grad=True), mask, bias, added, [learned])


def bucket(relative, bidirectional, count, most):
    """T5's rule, as its paper's code states it."""
    first = torch.zeros_like(relative)
    if bidirectional:
        count //= 2
        first, relative = (relative > 0) * count, relative.abs()
    else:
        relative = -relative.clamp(max=0)
    exact = count // 2
    far = torch.log(relative.float() / exact) / math.log(most / exact) * (count - exact)
    far = (exact + far.nan_to_num(neginf=0).long()).clamp(max=count - 1)
    return first + torch.where(relative < exact, relative, far)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("count", "most"), [(32, 128), (32, 40), (8, 20), (64, 256), (12, 1000)])
def test_buckets(bidirectional, count, most):
    learned = table(count, 4)
    m = 90
    added = learned[bucket(distances(m, m), bidirectional, count, most)].permute(2, 0, 1)
    bias = weft.bias.buckets(learned, bidirectional, most)
    mask = weft.full() if bidirectional else weft.causal()
    compare(qkv(m, heads=HEADS, dtype=torch.float64, grad=True), mask, bias, added, [learned])


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("count", "most"), [(32, 128), (32, 256), (16, 64), (64, 512), (10, 100)])
def test_buckets_are_those_of_transformers(bidirectional, count, most):
    attention = pytest.importorskip("transformers.models.t5.modeling_t5").T5Attention
    d = torch.arange(-3 * most, 3 * most + 1)
    expected = attention._relative_position_bucket(d, bidirectional, count, most)
    found = torch.from_numpy(weft.bias._bucket_of(count, bidirectional, most))[d.clamp(-most, most) + most]
    assert torch.equal(found, expected)


def test_alibi_and_slopes_that_learn():
    slopes = table(4)
    tensors = qkv(30, heads=HEADS, dtype=torch.float64, grad=True)
    added = -slopes[:, None, None] * distances(30, 30).abs()
    compare(tensors, WINDOW, weft.bias.alibi(slopes), added, [slopes])
    one = weft.attention(*tensors, WINDOW, alibi_slopes=slopes)
    (grad,) = torch.autograd.grad(one.square().sum(), slopes)
    other = weft.attention(*tensors, WINDOW, bias=weft.bias.alibi(slopes))
    assert torch.equal(grad, torch.autograd.grad(other.square().sum(), slopes)[0])
    plain = weft.attention(*tensors, WINDOW, alibi_slopes=slopes.detach())
    torch.testing.assert_close(plain, one, rtol=1e-13, atol=1e-13)


def test_biases_add_up():
    a, b, c = table(4, 7), table(30, 30), table(4)
    d = distances(30, 30)
    added = a[:, d.clamp(-3, 3) + 3] + b - c[:, None, None] * d.abs()
    bias = weft.bias.relative(a) + weft.bias.dense(b) + weft.bias.alibi(c)
    compare(qkv(30, heads=HEADS, dtype=torch.float64, grad=True), WINDOW, bias, added, [a, b, c])


@pytest.mark.parametrize("layout", ["bshd", "thd", "grid"])
def test_layouts(layout):
    learned = table(4, 3, 3)
    q, k, v = qkv(30, heads=HEADS, dtype=torch.float64, batch=1)
    mask, bias = weft.neighborhood((5, 6), (3, 3)), weft.bias.grid(learned, (5, 6))
    expected = weft.attention(q, k, v, mask, bias=bias)
    turned = [x.transpose(1, 2) for x in (q, k, v)]
    if layout == "bshd":
        found = weft.attention(*turned, mask, bias=bias, layout="bshd").transpose(1, 2)
    elif layout == "thd":
        found = weft.attention(*(x[0] for x in turned), mask, bias=bias, layout="thd").transpose(0, 1)[None]
    else:
        found = weft.attention(*(x.unflatten(1, (5, 6)) for x in turned), mask, bias=bias, layout="bshd")
        found = found.flatten(1, 2).transpose(1, 2)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_tables_of_other_dtypes(dtype):
    tensors = qkv(30, heads=HEADS, dtype=torch.float32, grad=True)
    learned = table(4, 7, dtype=dtype)
    out = weft.attention(*tensors, WINDOW, bias=weft.bias.relative(learned))
    (grad,) = torch.autograd.grad(out.square().sum(), learned)
    wide = learned.detach().float().requires_grad_()
    wide_out = weft.attention(*tensors, WINDOW, bias=weft.bias.relative(wide))
    torch.testing.assert_close(out, wide_out, rtol=0, atol=0)
    (expected,) = torch.autograd.grad(wide_out.square().sum(), wide)
    assert grad.dtype == dtype
    torch.testing.assert_close(grad, expected.to(dtype), rtol=0, atol=0)


def test_compiled_once_for_all_tables_and_lengths():
    counter = CompileCounterWithBackend("aot_eager")

    def call(q, k, v, mask, learned):
        return weft.attention(q, k, v, mask, bias=weft.bias.relative(learned))

    compiled = torch.compile(call, backend=counter, fullgraph=True, dynamic=True)
    for m, reach, left in ((20, 5, 3), (33, 5, 9), (47, 5, 30)):
        tensors, learned = qkv(m, heads=HEADS, grad=True), table(4, 2 * reach + 1, dtype=torch.float32)
        mask = weft.causal() & weft.window(left=left)
        found, expected = compiled(*tensors, mask, learned), call(*tensors, mask, learned)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
        grads = [torch.autograd.grad(x.square().sum(), (*tensors, learned)) for x in (found, expected)]
        for x, y in zip(*grads, strict=True):
            torch.testing.assert_close(x, y, rtol=0, atol=0)
    assert counter.frame_count == 1


class Layer(torch.nn.Module):
    """Every kind of bias and a score that was traced outside."""

    def __init__(self):
        super().__init__()
        for name, shape in (("a", (4, 7)), ("b", (32, 4)), ("c", (4,)), ("d", (4, 30, 30)), ("e", (4,))):
            setattr(self, name, torch.nn.Parameter(table(*shape, dtype=torch.float32).detach()))
        self.score = weft.trace_score(lambda score, b, h, q, k: score * torch.exp(0.1 * self.e[h]))

    def forward(self, q, k, v, mask):
        bias = (
            weft.bias.relative(self.a) + weft.bias.buckets(self.b) + weft.bias.alibi(self.c) + weft.bias.dense(self.d)
        )
        return weft.attention(q, k, v, mask, score=self.score, bias=bias, softcap=5.0)


def test_a_compiled_layer():
    layer, tensors = Layer(), qkv(30, heads=HEADS, grad=True)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    found, expected = compiled(*tensors, WINDOW), layer(*tensors, WINDOW)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    grads = [torch.autograd.grad(x.square().sum(), (*tensors, *layer.parameters())) for x in (found, expected)]
    assert all(torch.equal(x, y) and x.abs().sum() > 0 for x, y in zip(*grads, strict=True))


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing(reentrant):
    layer, tensors = Layer(), qkv(30, heads=HEADS, grad=True)
    expected = torch.autograd.grad(layer(*tensors, WINDOW).square().sum(), list(layer.parameters()))
    checkpoint(layer, *tensors, WINDOW, use_reentrant=reentrant).square().sum().backward()
    assert all(torch.equal(x.grad, y) for x, y in zip(layer.parameters(), expected, strict=True))


def test_autocast():
    tensors, learned = qkv(30, heads=HEADS), table(4, 7, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = weft.attention(*tensors, WINDOW, bias=weft.bias.relative(learned))
    assert out.dtype == torch.bfloat16


def test_gradients_are_the_same_bits():
    tensors, learned = qkv(200, heads=HEADS, grad=True), table(4, 7, dtype=torch.float32)
    found = [
        torch.autograd.grad(
            weft.attention(*tensors, weft.full(), bias=weft.bias.relative(learned)).square().sum(), learned
        )[0]
        for _ in range(3)
    ]
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
