"""FlexAttention's functions on a GPU: scores, masks and compiled calls, beside torch's mathematics in float64."""

import pytest
import torch
from torch.nn.attention import flex_attention as theirs

from weft.integrations.flex import AuxRequest, create_block_mask, flex_attention
from weft.testing.tolerance import assert_close

from .flex.helpers import reference

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU")]
DEVICE = "cuda"
B, H, KV, S = 2, 4, 2, 200
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def drawn(*shapes, dtype):
    random = torch.Generator(DEVICE).manual_seed(0)
    return [torch.randn(shape, device=DEVICE, generator=random).to(dtype).requires_grad_() for shape in shapes]


def learned(*shape):
    return torch.linspace(-0.5, 0.5, torch.Size(shape).numel(), device=DEVICE).view(shape).requires_grad_()


def ids():
    return torch.arange(S, device=DEVICE) // 37


# ---- what users write; makers answer a function and the tensors that it learns ---------------------------------------
def alibi():
    slopes = learned(H)
    return lambda score, b, h, q, k: score - slopes[h].exp() * (q - k).abs() * 0.1, [slopes]


def relative():
    table = learned(H, 2 * S - 1)
    return lambda score, b, h, q, k: score + table[h, q - k + S - 1], [table]


def per_query():
    table = learned(B, H, S)
    return lambda score, b, h, q, k: score * torch.sigmoid(table[b, h, q]), [table]


def documents():
    own = ids()
    return lambda score, b, h, q, k: torch.where(own[q] == own[k], score, -float("inf")), []


def plain(function):
    return lambda: (function, [])


SCORES = {
    "alibi": alibi,
    "relative": relative,
    "per_query": per_query,
    "documents": documents,
    "softcap": plain(lambda score, b, h, q, k: 5 * torch.tanh(score / 5)),
    "causal": plain(lambda score, b, h, q, k: torch.where(q >= k, score, -float("inf"))),
    "gelu": plain(lambda score, b, h, q, k: torch.nn.functional.gelu(score) + torch.nn.functional.silu(score)),
    "distance": plain(lambda score, b, h, q, k: score + (q - k) * 0.01 * (h + 1)),
}


def packed():
    own = ids()
    return lambda b, h, q, k: (own[q] == own[k]) & (q >= k)


def padded():
    lengths = torch.tensor([150, 200], device=DEVICE)
    return lambda b, h, q, k: (k < lengths[b]) & (q >= k)


MASKS = {
    "causal": lambda: lambda b, h, q, k: q >= k,
    "window": lambda: lambda b, h, q, k: (q >= k) & (q - k < 50),
    "heads": lambda: lambda b, h, q, k: (q - k).abs() < 20 * (h + 1),
    "packed": packed,
    "padded": padded,
    "some_see_nothing": lambda: lambda b, h, q, k: (q > 90) & (k < q),
}


def compare(attend, inputs, score_mod=None, mask_mod=None, tables=(), scale=None):
    """attend(q, k, v) -> (out, lse): with the gradients of inputs and tables, as float64 and as the same dtype have
    them.
    """
    dtype = inputs[0].dtype
    found = []
    for given, call in (
        (inputs, attend),
        ([x.detach().double().requires_grad_() for x in inputs], None),
        ([x.detach().clone().requires_grad_() for x in inputs], None),
    ):
        q, k, v = given
        if call is None:
            group = q.shape[1] // k.shape[1]
            shared = (x.repeat_interleave(group, 1) for x in (k, v))
            out, lse = reference(q, *shared, score_mod, mask_mod, scale)
        else:
            out, lse = call(q, k, v)
        weights = torch.linspace(-1, 1, out.numel(), device=DEVICE, dtype=torch.float64).view(out.shape).sin()
        grads = torch.autograd.grad((out.double() * weights).sum(), (*given, *tables))
        found.append((out, lse, *grads))
    names = ("out", "lse", "dq", "dk", "dv", *("dtable" for _ in tables))
    assert found[0][0].dtype == dtype
    for name, ours, truth, plain in zip(names, *found, strict=True):
        assert_close(name, ours, truth, plain.to(dtype if name != "lse" else plain.dtype))


def with_lse(mask=None, score_mod=None, call=flex_attention, **options):
    def attend(q, k, v):
        shared = {"enable_gqa": q.shape[1] != k.shape[1]}
        out, aux = call(q, k, v, score_mod, mask, return_aux=AuxRequest(lse=True), **shared, **options)
        return out, aux.lse

    return attend


def heads(dim, dtype=torch.bfloat16, kv_heads=KV):
    return drawn((B, H, S, dim), (B, kv_heads, S, dim), (B, kv_heads, S, dim), dtype=dtype)


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, DTYPES[0]) for name in SCORES), *(("alibi", x) for x in DTYPES[1:])]
)
def test_scores(name, dtype):
    score_mod, tables = SCORES[name]()
    compare(with_lse(score_mod=score_mod), heads(64, dtype), score_mod, tables=tables)


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, DTYPES[0]) for name in MASKS), *(("window", x) for x in DTYPES[1:])]
)
def test_masks(name, dtype):
    mask_mod = MASKS[name]()
    mask = create_block_mask(mask_mod, B, H, S, S)
    assert mask.kv_indices.is_cuda == (DEVICE == "cuda")
    compare(with_lse(mask), heads(64, dtype), mask_mod=mask_mod)


@pytest.mark.parametrize("dim", [8, 17, 24, 40, 94, 121, 128, 200, 256])
def test_head_dimensions(dim):
    mask_mod = MASKS["window"]()
    mask = create_block_mask(mask_mod, None, None, S, S)
    compare(with_lse(mask), heads(dim, kv_heads=H), mask_mod=mask_mod)
    if dim in (24, 94, 128):
        score_mod, tables = alibi()
        compare(with_lse(mask, score_mod), heads(dim, kv_heads=H), score_mod, mask_mod, tables)


@pytest.mark.parametrize("lengths", [(1, 300), (17, 200), (130, 50)], ids=str)
def test_queries_and_keys_apart(lengths):
    m, n = lengths
    x = drawn((B, H, m, 64), (B, KV, n, 64), (B, KV, n, 32), dtype=torch.bfloat16)
    score_mod, tables = alibi()
    compare(with_lse(score_mod=score_mod, scale=0.2), x, score_mod, tables=tables, scale=0.2)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled(dynamic):
    torch._dynamo.reset()
    compiled = torch.compile(flex_attention, fullgraph=True, dynamic=dynamic)
    (score_mod, tables), mask_mod = alibi(), MASKS["packed"]()
    mask = create_block_mask(mask_mod, None, None, S, S)
    compare(with_lse(mask, score_mod, compiled), heads(64), score_mod, mask_mod, tables)


def test_a_mask_that_a_compiled_function_makes():
    torch._dynamo.reset()
    mask_mod = MASKS["window"]()

    @torch.compile(fullgraph=True)
    def attend(q, k, v):
        mask = create_block_mask(mask_mod, None, None, S, S)
        out, aux = flex_attention(q, k, v, block_mask=mask, enable_gqa=True, return_aux=AuxRequest(lse=True))
        return out, aux.lse

    compare(attend, heads(64), mask_mod=mask_mod)


@pytest.mark.filterwarnings("ignore:flex_attention in float64")  # said once in a process
def test_float64_is_computed_on_the_host():
    gains, mask_mod = learned(H).detach().double().requires_grad_(), MASKS["packed"]()
    mask = create_block_mask(mask_mod, None, None, S, S)

    def score_mod(score, b, h, q, k):
        return torch.tanh(score) * gains[h]

    compare(with_lse(mask, score_mod), heads(64, torch.float64), score_mod, mask_mod, [gains])
    assert flex_attention(*heads(64, torch.float64), block_mask=mask, enable_gqa=True).device.type == DEVICE


def test_beside_torchs_own_kernels():
    torch._dynamo.reset()
    (score_mod, tables), mask_mod = alibi(), MASKS["packed"]()
    x = heads(64)
    own = theirs.create_block_mask(mask_mod, None, None, S, S, device=DEVICE)
    ours = create_block_mask(mask_mod, None, None, S, S)
    assert str(ours) == str(own) and torch.equal(ours.to_dense(), own.to_dense())
    out = torch.compile(theirs.flex_attention)(*x, score_mod, own, enable_gqa=True)
    found = flex_attention(*x, score_mod, ours, enable_gqa=True)
    assert (found - out).abs().max() < 0.02
    assert torch.equal(flex_attention(*x, score_mod, own, enable_gqa=True), found)
    seed = torch.randn_like(out)
    for a, b in zip(*(torch.autograd.grad(one, (*x, *tables), seed) for one in (found, out)), strict=True):
        assert (a.float() - b.float()).abs().max() < 0.02 * b.abs().max()
