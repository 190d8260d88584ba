"""flex_attention: shapes, dtypes, options, gradients, and the errors of torch's."""

import gc
import weakref

import pytest
import torch
from tests.tiers import sample
from torch.nn.attention import flex_attention as theirs

import weft
from weft.errors import InputError, OptionError, UnsupportedError
from weft.integrations.flex import AuxRequest, call, create_block_mask, flex_attention, host
from weft.torch import tracing

from .helpers import gradients, reference, tensors


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def sloped(score, b, h, q_idx, kv_idx):
    return score - (q_idx - kv_idx).abs() * 0.25 * (h + 1)


def held(x, score_mod=None, mask_mod=None, leaves=(), tolerance=1e-9, **options):
    """The call, its lse and gradients beside torch's mathematics in float64."""
    mask = mask_mod and create_block_mask(mask_mod, None, None, x[0].shape[2], x[1].shape[2], device="cpu")
    out, aux = flex_attention(*x, score_mod, mask, return_aux=AuxRequest(lse=True), **options)
    exact = [t.detach().double().requires_grad_() for t in x]
    expected, lse = reference(*exact, score_mod, mask_mod, options.get("scale"))
    assert out.dtype == x[0].dtype
    close = {"rtol": tolerance, "atol": tolerance}
    torch.testing.assert_close(out.double(), expected, **close)
    torch.testing.assert_close(aux.lse.double(), lse, **close)
    found, wanted = gradients(out.double(), [*x, *leaves]), gradients(expected, [*exact, *leaves])
    for ours, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours.double(), other, rtol=10 * tolerance, atol=10 * tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float16, 5e-3), (torch.bfloat16, 4e-2)])
def test_dtypes(dtype, tolerance):
    held([t.detach().to(dtype).requires_grad_() for t in tensors()], sloped, causal, tolerance=tolerance)


@pytest.mark.parametrize(("m", "n"), sample([(50, 131), (131, 50), (1, 77), (129, 129)], (50, 131)))
def test_lengths_of_queries_and_keys_apart(m, n):
    held(tensors(m=m, n=n), sloped, causal)
    held(tensors(m=m, n=n), sloped)


def test_shared_key_heads():
    held(tensors(kv_heads=2), sloped, causal, enable_gqa=True)


def test_scale():
    held(tensors(), sloped, scale=0.5)


def test_strides():
    x = [t.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for t in tensors()]
    held(x, sloped, causal)
    one = torch.randn(2, 4, 40, 24, dtype=torch.float64, requires_grad=True)
    held([t.detach().requires_grad_() for t in one.chunk(3, -1)], None, causal)


def test_one_row_of_keys_for_all_rows_of_a_mask():
    q, k, v = tensors()
    k, v = (t[:1].detach().requires_grad_() for t in (k, v))

    def mod(b, h, i, j):
        return (i >= j) & (j >= b)

    mask = create_block_mask(mod, 2, None, 96, 96, device="cpu")
    out, (expected, _) = flex_attention(q, k, v, block_mask=mask), reference(q, k, v, None, mod)
    torch.testing.assert_close(out, expected)
    for ours, wanted in zip(gradients(out, (q, k, v)), gradients(expected, (q, k, v)), strict=True):
        torch.testing.assert_close(ours, wanted)
    with pytest.raises(ValueError, match="same batch size"):
        flex_attention(q, k, v)
    with pytest.raises(ValueError, match="B_block_mask=1"):
        flex_attention(q, k, v, block_mask=create_block_mask(causal, None, None, 96, 96, device="cpu"))


@pytest.mark.filterwarnings("ignore:return_lse is deprecated")
def test_gradients_from_lse():
    x = tensors()
    out, lse = flex_attention(*x, sloped, create_block_mask(causal, None, None, 96, 96, "cpu"), return_lse=True)
    expected, wanted = reference(*x, sloped, causal)
    found = torch.autograd.grad((lse.sin() + out.sum(-1)).sum(), x)
    for ours, other in zip(found, torch.autograd.grad((wanted.sin() + expected.sum(-1)).sum(), x), strict=True):
        torch.testing.assert_close(ours, other)


def test_rows_without_keys():
    held(tensors(), sloped, lambda b, h, q, k: (q > 40) & (k < 30))


def test_what_comes_back():
    x = tensors()
    out = flex_attention(*x)
    both = flex_attention(*x, return_aux=AuxRequest())
    assert (both[1].lse, both[1].max_scores) == (None, None)
    torch.testing.assert_close(both[0], out)
    assert flex_attention(*x, return_aux=AuxRequest(lse=True))[1].lse.shape == (2, 4, 96)


def test_masks_of_torch():
    x = tensors()
    mask = theirs.create_block_mask(causal, 2, 4, 96, 96, device="cpu")
    torch.testing.assert_close(flex_attention(*x, sloped, mask), reference(*x, sloped, causal)[0])
    empty = theirs._create_empty_block_mask(*x[:2])
    torch.testing.assert_close(flex_attention(*x, sloped, empty), reference(*x, sloped)[0])


def test_a_score_that_changes_its_argument():
    def added(score, b, h, q, k):
        score += 0.1 * (q - k)
        score *= 2
        return score

    held(tensors(), added, tolerance=1e-6)


def test_modules_as_scores():
    class Gate(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = torch.nn.Parameter(torch.randn(4, dtype=torch.float64))

        def forward(self, score, b, h, q, k):
            return score * torch.sigmoid(self.gate[h])

    gate = Gate()
    held(tensors(), gate, causal, leaves=(gate.gate,))
    held(tensors(), gate.forward, causal, leaves=(gate.gate,))


def test_modes():
    x, mask = tensors(), create_block_mask(causal, None, None, 96, 96, "cpu")
    expected = flex_attention(*x, sloped, mask)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            torch.testing.assert_close(flex_attention(*x, sloped, mask), expected)


# ---- traces are kept -------------------------------------------------------------------------------------------------
def test_a_score_is_traced_once(monkeypatch):
    table = torch.randn(4, dtype=torch.float64, requires_grad=True)
    made, held_table = [], [table]
    trace = tracing._traced
    monkeypatch.setattr(tracing, "_traced", lambda function, own: made.append(1) or trace(function, own=own))

    def scored():
        table = held_table[0]
        return lambda score, b, h, q, k: score + table[h]  # another function each time

    x = tensors()
    tracing._known.clear()
    for _ in range(3):
        torch.testing.assert_close(flex_attention(*x, scored()), reference(*x, scored())[0])
    assert len(made) == 1
    with torch.no_grad():
        table.mul_(2)
    torch.testing.assert_close(flex_attention(*x, scored()), reference(*x, scored())[0])
    assert len(made) == 2
    gone = weakref.ref(table)
    del table
    held_table.clear()
    gc.collect()
    assert gone() is None


def test_other_values_are_another_score():
    x = tensors()
    for slope in (1.0, 2.0):

        def mod(score, b, h, q, k, slope=slope):
            return score - slope * (q - k).abs()

        torch.testing.assert_close(flex_attention(*x, mod), reference(*x, lambda *args, mod=mod: mod(*args))[0])


def test_float64_on_a_gpu_goes_to_the_host_and_is_said_once(monkeypatch, recwarn):
    """Here the host is where the tensors are; tests/integrations/test_flex_gpu.py has a GPU's."""
    monkeypatch.setattr(call, "_said", set())
    monkeypatch.setattr(host, "needs_host", lambda query: True)
    slopes = torch.rand(4, dtype=torch.float64, requires_grad=True)
    for _ in range(2):
        held(tensors(), lambda score, b, h, q, k: score - slopes[h] * (q - k).abs(), causal, [slopes])
    assert sum("on the host" in str(w.message) for w in recwarn) == 1


# ---- bad input -------------------------------------------------------------------------------------------------------
CASES = {
    "heads": (ValueError, "Try setting enable_gqa=True", {"k": (2, 2, 96, 8), "v": (2, 2, 96, 8)}),
    "groups": (ValueError, "multiple of kv heads", {"k": (2, 3, 96, 8), "v": (2, 3, 96, 8), "enable_gqa": True}),
    "dimension": (ValueError, "same embedding dimension", {"k": (2, 4, 96, 16)}),
    "axes": (NotImplementedError, "4D tensors", {"q": (4, 96, 8), "k": (4, 96, 8), "v": (4, 96, 8)}),
    "axis": (ValueError, "at least 2 dimensional", {"q": (8,)}),
    "batch": (ValueError, "same batch size", {"k": (1, 4, 96, 8), "v": (1, 4, 96, 8)}),
    "shorter": (ValueError, "created for a larger length", {"mask": (128, 128)}),
    "longer": (ValueError, "created for a smaller length", {"mask": (64, 96)}),
    "both_outputs": (ValueError, "Cannot specify both", {"return_lse": True, "return_aux": AuxRequest(lse=True)}),
    "max_scores": (NotImplementedError, "max scores is not supported", {"return_aux": AuxRequest(max_scores=True)}),
    "keyword": (TypeError, "unexpected keyword argument 'dropout_p'", {"dropout_p": 0.1}),
    "kernel_option": (OptionError, "FlexKernelOptions has no BLOCKM", {"kernel_options": {"BLOCKM": 64}}),
    "decided": (AssertionError, "OUTPUT_MAX must not be", {"kernel_options": {"OUTPUT_MAX": True}}),
    "booleans": (InputError, "it is no BlockMask", {"block_mask": torch.ones(96, 96, dtype=torch.bool)}),
    "backend": (ValueError, "Invalid BACKEND", {"kernel_options": {"BACKEND": "fast"}}),
    "two_backends": (RuntimeError, "cannot be combined",
                     {"kernel_options": {"BACKEND": "AUTO", "FORCE_USE_FLEX_ATTENTION": True}}),
    "score": (OptionError, "it does not take score, b, h, q, k", {"score_mod": causal}),
    "untraceable": (OptionError, "at `atan`", {"score_mod": lambda score, b, h, q, k: torch.atan(score)}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_refused(name):
    kind, text, given = CASES[name]
    given = dict(given)
    x = [torch.zeros(given.pop(letter, (2, 4, 96, 8))) for letter in "qkv"]
    if "mask" in given:
        given["block_mask"] = create_block_mask(causal, None, None, *given.pop("mask"), device="cpu")
    with pytest.raises(kind, match=text):
        flex_attention(*x, **given)


def test_refused_tensors():
    x = [torch.zeros(1, 1, 8, 4) for _ in range(3)]
    with pytest.raises(ValueError, match="same device type"):
        flex_attention(x[0], x[1].to("meta"), x[2])
    with pytest.raises(RuntimeError, match="block_mask to be on the same device"):
        flex_attention(*x, block_mask=create_block_mask(causal, None, None, 8, 8, device="meta"))
    with pytest.raises(ValueError, match=r"same dtype, but got query\.dtype: torch\.float16"):
        flex_attention(x[0].half(), x[1], x[2])
    with pytest.raises(InputError, match="int32"):
        flex_attention(*(t.int() for t in x))
    nested = torch.nested.nested_tensor([torch.zeros(1, 8, 4)], layout=torch.jagged)
    with pytest.raises(NotImplementedError, match="NestedTensor"):
        flex_attention(nested, nested, nested)
    sliced = create_block_mask(causal, None, None, 8, 8, device="cpu")[0]
    with pytest.raises(RuntimeError, match="Cannot use mask_mod from a sliced BlockMask"):
        flex_attention(*x, block_mask=sliced)


def test_said_once(recwarn, monkeypatch):
    monkeypatch.setattr(call, "_said", set())
    x = tensors(grad=False)
    options = {"BLOCK_M": 64, "fwd_num_warps": 4, "bwd_BLOCK_M1": 32, "BACKEND": "AUTO"}
    for _ in range(3):
        flex_attention(*x, kernel_options=options)
        flex_attention(*x, return_lse=True)
    assert [(w.category, str(w.message).split()[0]) for w in recwarn] == [
        (UserWarning, "kernel_options"), (FutureWarning, "return_lse"),
    ]  # fmt: skip


def test_refusals_are_of_weft():
    with pytest.raises(UnsupportedError):
        flex_attention(*tensors(), return_aux=AuxRequest(max_scores=True))
    assert issubclass(weft.errors.OptionError, ValueError)
