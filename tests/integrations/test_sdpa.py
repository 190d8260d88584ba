"""torch's scaled_dot_product_attention by weft: torch's own is the oracle, in float64."""

import threading

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as torchs

import weft
from weft.errors import InputError, LengthError, OptionError
from weft.integrations import sdpa
from weft.testing.refusals import refuse


def drawn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def booleans(*shape):
    """At random, with a key for every query: torch's answer without one depends on its kernel."""
    mask = torch.rand(*shape, generator=torch.Generator().manual_seed(5)) > 0.4
    mask[..., 0] = True
    return mask


def near(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)


B, H, M, N, D = 2, 4, 7, 9, 8
PLAIN = ((B, H, M, D), (B, H, N, D), (B, H, N, D))
CALLS = {
    "no mask": (PLAIN, {}),
    "values of another dimension": (((B, H, M, D), (B, H, N, D), (B, H, N, 5)), {"scale": 0.3}),
    "causal": (PLAIN, {"is_causal": True}),
    "two dimensions": (((M, D), (N, D), (N, D)), {"attn_mask": booleans(M, N)}),
    "three dimensions": (((B, M, D), (B, N, D), (B, N, D)), {"attn_mask": booleans(B, M, N)}),
    "three dimensions, bias": (((B, M, D), (B, N, D), (B, N, D)), {"attn_mask": drawn(B, 1, N)}),
    "five dimensions": (((3, B, H, M, D), (3, B, H, N, D), (3, B, H, N, D)), {"attn_mask": booleans(B, 1, M, N)}),
    "five dimensions, bias": (((3, B, H, M, D),) * 3, {"attn_mask": drawn(H, M, M)}),
    "grouped heads": (((B, H, M, D), (B, 2, N, D), (B, 2, N, D)), {"enable_gqa": True}),
    "one head of keys": (((B, H, M, D), (B, 1, N, D), (B, 1, N, D)), {"attn_mask": booleans(M, N)}),
    "one batch row of keys": (((B, H, M, D), (1, H, N, D), (1, H, N, D)), {}),
    "a mask of pairs": (PLAIN, {"attn_mask": booleans(M, N)}),
    "a mask of heads": (PLAIN, {"attn_mask": booleans(H, M, N)}),
    "a mask of batch rows": (PLAIN, {"attn_mask": booleans(B, 1, M, N)}),
    "a mask of everything": (PLAIN, {"attn_mask": booleans(B, H, M, N)}),
    "padding": (PLAIN, {"attn_mask": booleans(B, 1, 1, N)}),
    "padding of all rows": (PLAIN, {"attn_mask": booleans(1, N)}),
    "a mask of queries": (PLAIN, {"attn_mask": booleans(H, 1, N)}),
    "bias": (PLAIN, {"attn_mask": drawn(B, H, M, N)}),
    "a bias of heads": (PLAIN, {"attn_mask": drawn(H, 1, N)}),
}


@pytest.mark.parametrize("name", CALLS)
def test_as_torchs(name):
    shapes, options = CALLS[name]
    q, k, v = (drawn(*shape, seed=i).requires_grad_() for i, shape in enumerate(shapes))
    leaves = [q, k, v]
    mask = options.get("attn_mask")
    if mask is not None and mask.is_floating_point():
        options = {**options, "attn_mask": mask.clone().requires_grad_()}
        leaves.append(options["attn_mask"])
    results = []
    for function in (sdpa.scaled_dot_product_attention, torchs):
        out = function(q, k, v, **options)
        results.append((out, *torch.autograd.grad((out * drawn(*out.shape, seed=9)).sum(), leaves)))
    for ours, theirs in zip(*results, strict=True):
        near(ours, theirs)


def test_a_mask_that_was_changed_is_read_again():
    q, k, v = (drawn(*shape, seed=i) for i, shape in enumerate(PLAIN))
    for shape in ((M, N), (B, 1, 1, N)):
        mask = booleans(*shape)
        first = sdpa.scaled_dot_product_attention(q, k, v, mask)
        assert torch.equal(first, sdpa.scaled_dot_product_attention(q, k, v, mask))
        mask[..., 0], mask[..., 3] = False, True
        near(sdpa.scaled_dot_product_attention(q, k, v, mask), torchs(q, k, v, mask))


def test_queries_without_keys_give_zero():
    q, k, v = (drawn(*shape, seed=i) for i, shape in enumerate(PLAIN))
    mask = booleans(M, N)
    mask[2] = False
    out = sdpa.scaled_dot_product_attention(q, k, v, mask)
    assert not out[:, :, 2].any() and out.isfinite().all()


def test_dropout_is_torchs_in_the_mean():
    q, k, v = (drawn(*shape, seed=i) for i, shape in enumerate(PLAIN))
    torch.manual_seed(0)
    drops = [sdpa.scaled_dot_product_attention(q, k, v, None, 0.5) for _ in range(400)]
    assert not torch.equal(drops[0], drops[1])
    assert (torch.stack(drops).mean(0) - torchs(q, k, v)).abs().max() < 0.5


def test_what_is_refused():
    q, k, v = (drawn(*shape, seed=i) for i, shape in enumerate(PLAIN))
    attend = sdpa.scaled_dot_product_attention
    refuse(lambda: attend(q, k, v, booleans(M, N), is_causal=True), OptionError, ["one of them"])
    refuse(lambda: attend(q, k[:, :2], v[:, :2]), OptionError, ["enable_gqa"])
    refuse(lambda: attend(q, k, v, booleans(M, N).int()), InputError, ["int32"])
    refuse(lambda: attend(q, k[0], v), InputError, ["3 dimensions"])
    refuse(lambda: attend(q, k.to_sparse(), v), InputError, ["strides"])
    refuse(lambda: attend(q, k, v, booleans(N)), InputError, ["1 dimensions"])
    refuse(lambda: attend(q, k, v, booleans(B, 1, 3, 1)), InputError, ["(2, 1, 3, 1)"])
    refuse(lambda: attend(q, torch.cat([k, k[:1]]), v), InputError, ["batch"])
    refuse(lambda: attend(q, k.float(), v), InputError, ["float32"])
    with pytest.raises((InputError, LengthError, OptionError)):
        attend(q, k, v, drawn(B, H, M, N - 1))
    with pytest.raises(TypeError, match="attention_mask"):
        attend(q, k, v, attention_mask=None)


# ---- in the place of torch's -----------------------------------------------------------------------------------------
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = torch.nn.MultiheadAttention(16, 4, batch_first=True)
        self.layer = torch.nn.TransformerEncoderLayer(16, 4, batch_first=True, dropout=0.0)

    def forward(self, x):
        x = self.layer(self.heads(x, x, x, need_weights=False)[0])
        q, k, v = x.unflatten(-1, (2, 8)).transpose(1, 2).unsqueeze(0).expand(3, -1, -1, -1, -1)
        return torchs(q, k, v) + torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def test_every_call_of_a_block_is_wefts():
    torch.manual_seed(0)
    model, x = Model().double(), drawn(2, 9, 16)
    expected = model(x)
    theirs = torch.autograd.grad(expected.square().sum(), list(model.parameters()))
    with sdpa.in_place_of_torch() as served:
        out = model(x)
        ours = torch.autograd.grad(out.square().sum(), list(model.parameters()))
    assert served.calls == 4
    for one, other in zip((out, *ours), (expected, *theirs), strict=True):
        near(one, other)
    model(x)
    assert served.calls == 4 and torch.nn.functional.scaled_dot_product_attention is torchs


def test_a_block_refuses_and_ends():
    q, k, v = (drawn(*shape, seed=i) for i, shape in enumerate(PLAIN))
    mask = booleans(M, N)
    with sdpa.in_place_of_torch(), pytest.raises(OptionError, match="one of them"):
        torchs(q, k, v, mask, is_causal=True)
    elsewhere = []
    with sdpa.in_place_of_torch() as served:
        thread = threading.Thread(target=lambda: elsewhere.append(torchs(q, k, v)))
        thread.start()
        thread.join()
    assert served.calls == 0 and len(elsewhere) == 1


@pytest.mark.more
def test_a_compiled_model_in_a_block():
    torch._dynamo.reset()
    q, k, v = (drawn(*shape, seed=i) for i, shape in enumerate(PLAIN))

    def attend(q, k, v):
        return torchs(q, k, v, is_causal=True).sin()

    with sdpa.in_place_of_torch() as served:
        out = torch.compile(attend, fullgraph=True, backend="aot_eager")(q, k, v)
    assert served.calls == 1
    near(out, attend(q, k, v))
    heads, x = Model().heads.double(), drawn(2, 9, 16)
    with sdpa.in_place_of_torch() as served:
        out = torch.compile(lambda x: heads(x, x, x, need_weights=False)[0], backend="aot_eager")(x)
    assert served.calls == 1
    near(out, heads(x, x, x)[0])


@pytest.mark.more
def test_a_mask_in_a_compiled_function_is_refused():
    q, k, v = (drawn(*shape, seed=i) for i, shape in enumerate(PLAIN))
    compiled = torch.compile(sdpa.scaled_dot_product_attention, fullgraph=True, backend="eager")
    with pytest.raises(
        Exception, match=r"a graph cannot read what a mask says|raised exception InputError"
    ):  # as of torch
        compiled(q, k, v, booleans(M, N))
    near(compiled(q, k, v, is_causal=True), torchs(q, k, v, is_causal=True))


def test_what_is_recognised_skips_work():
    mask = torch.ones(512, 512, dtype=torch.bool).tril().triu(-63)
    q = drawn(1, 1, 512, 8)
    assert weft.recognize(mask).pattern.acsr(512, 512).nnz == mask.sum()
    near(sdpa.scaled_dot_product_attention(q, q, q, mask), torchs(q, q, q, mask))
