"""flex_attention in torch.compile(fullgraph=True): no graph for each mask, tables as inputs with gradients."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.attention import flex_attention as theirs

from weft.errors import OptionError
from weft.integrations.flex import AuxRequest, BlockMask, create_block_mask, flex_attention

from .helpers import gradients, reference, tensors


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def held(function, args, expected, leaves, backend="aot_eager", **options):
    """A compiled function beside what it should compute, with gradients."""
    out = torch.compile(function, fullgraph=True, backend=backend, **options)(*args)
    torch.testing.assert_close(out, expected)
    for ours, wanted in zip(gradients(out, leaves), gradients(expected, leaves), strict=True):
        torch.testing.assert_close(ours, wanted)


def learned():
    slopes = torch.randn(4, dtype=torch.float64, requires_grad=True)
    gain = torch.randn((), dtype=torch.float64, requires_grad=True)
    table = torch.randn(4, 191, dtype=torch.float64, requires_grad=True)

    def score_mod(score, b, h, q, k):
        score += table[h, q - k + 95]
        return score * gain - torch.exp(slopes)[h] * (q - k).abs()

    return score_mod, (slopes, gain, table)


@pytest.mark.more
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_scores_and_masks(backend, dynamic):
    score_mod, tables = learned()
    x, mask = tensors(), create_block_mask(causal, None, None, 96, 96, "cpu")
    expected, _ = reference(*x, lambda score, *at: score_mod(score.clone(), *at), causal)
    held(flex_attention, (*x, score_mod, mask), expected, [*x, *tables], backend, dynamic=dynamic)


@pytest.mark.more
def test_a_module_with_parameters():
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.bias = torch.nn.Parameter(torch.randn(4, 191, dtype=torch.float64))

        def forward(self, q, k, v, mask):
            def score_mod(score, b, h, i, j):
                return score + self.bias[h, i - j + q.shape[2] - 1]

            return flex_attention(q, k, v, score_mod, mask)

    layer, x = Layer(), tensors()
    mask = create_block_mask(causal, None, None, 96, 96, "cpu")
    held(layer, (*x, mask), layer(*x, mask), [*x, layer.bias])


def test_no_mask_is_compiled_anew():
    count = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(flex_attention, fullgraph=True, backend=count)
    x = tensors(grad=False)
    for width in (20, 33, 50):
        ids = torch.arange(96) // width
        for mod in (lambda b, h, q, k: (q >= k) & (q - k < width), lambda b, h, q, k: ids[q] == ids[k]):  # noqa: B023
            mask = create_block_mask(mod, None, None, 96, 96, "cpu")
            torch.testing.assert_close(compiled(*x, None, mask), reference(*x, None, mod)[0])
    assert count.frame_count <= 2  # of one length of a pattern's record, then of any


def test_another_captured_tensor_is_seen():
    compiled = torch.compile(flex_attention, fullgraph=True, backend="aot_eager")
    x = tensors(grad=False)

    def sloped(slopes):
        return lambda score, b, h, q, k: score - slopes[h] * (q - k)

    for _ in range(3):
        mod = sloped(torch.randn(4, dtype=torch.float64))
        torch.testing.assert_close(compiled(*x, mod), reference(*x, mod)[0])


def test_aux_outputs():
    x = tensors(grad=False)
    request = AuxRequest(lse=True)
    out, aux = torch.compile(flex_attention, fullgraph=True, backend="aot_eager")(*x, return_aux=request)
    expected, lse = reference(*x)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(aux.lse, lse)
    assert aux.max_scores is None


# ---- masks that a graph makes ----------------------------------------------------------------------------------------
@pytest.mark.more
def test_a_mask_of_a_formula_made_inside():
    x = tensors()

    def function(q, k, v):
        mask = create_block_mask(causal, None, None, q.shape[2], q.shape[2], device="cpu")
        return flex_attention(q, k, v, block_mask=mask)

    held(function, x, reference(*x, None, causal)[0], x)


@pytest.mark.more
@pytest.mark.filterwarnings("ignore:flex_attention computes every pair")
def test_a_mask_of_a_tensor_made_inside():
    x, ids = tensors(), torch.arange(96) // 13

    def same(b, h, q, k):
        return (ids[q] == ids[k]) & (q >= k)

    def function(q, k, v, ids):
        mask = create_block_mask(
            lambda b, h, q, k: (ids[q] == ids[k]) & (q >= k), None, None, 96, 96, device="cpu", BLOCK_SIZE=32
        )
        return flex_attention(q, k, v, block_mask=mask)

    held(function, (*x, ids), reference(*x, None, same)[0], x)


@pytest.mark.more
def test_every_pair_is_computed_and_said():
    x = tensors(grad=False)
    mask = theirs.create_block_mask(causal, 2, 4, 96, 96, device="cpu")
    with pytest.warns(UserWarning, match="computes every pair here"):
        out = torch.compile(flex_attention, fullgraph=True, backend="aot_eager")(*x, None, mask)
    torch.testing.assert_close(out, reference(*x, None, causal)[0])


@pytest.mark.more
def test_create_block_mask_compiled():
    made = torch.compile(create_block_mask, fullgraph=True, backend="aot_eager")(causal, 2, 4, 300, 300, device="cpu")
    wanted = theirs.create_block_mask(causal, 2, 4, 300, 300, device="cpu")
    assert type(made) is BlockMask
    assert torch.equal(made.kv_indices, wanted.kv_indices)
    assert torch.equal(made.full_kv_num_blocks, wanted.full_kv_num_blocks)
    x = tensors(2, 4, 300, grad=False)
    torch.testing.assert_close(flex_attention(*x, None, made), reference(*x, None, causal)[0])


# ---- bad input -------------------------------------------------------------------------------------------------------
@pytest.mark.more
def test_what_cannot_be_traced():
    def atan(score, b, h, q, k):
        return torch.atan(score)

    x = tensors(grad=False)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="tracing ended at `atan`"):
        torch.compile(flex_attention, fullgraph=True, backend="eager")(*x, atan)
    torch._dynamo.reset()
    with pytest.raises(OptionError, match="at `atan`"):  # the graph breaks off, and the call says what is wrong
        torch.compile(flex_attention, backend="eager")(*x, atan)
