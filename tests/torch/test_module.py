"""SparseAttention: a module that copies, pickles, moves, exports, and says what it is."""

import copy
import io
import pickle

import pytest
import torch

import weft
from weft.errors import InputError, OptionError
from weft.testing.cases import CASES, At
from weft.testing.refusals import refuse
from weft.torch import SparseAttention

from .helpers import qkv

PATTERN = weft.causal() & weft.window(left=3)


def full_module():
    return SparseAttention(
        PATTERN, sinks=torch.linspace(-1.0, 1.0, 4), alibi_slopes=torch.rand(4), scale=0.3, softcap=2.0, return_lse=True
    )


def same(first, second):
    return all(torch.equal(x, y) for x, y in zip(first, second, strict=True))


def test_it_is_attention_with_options_kept():
    module, x = full_module(), qkv(20)
    expected = weft.attention(
        *x, PATTERN, sinks=module.sinks, alibi_slopes=module.alibi_slopes, scale=0.3, softcap=2.0, return_lse=True
    )
    assert same(module(*x), expected)
    assert isinstance(SparseAttention(PATTERN)(*x), torch.Tensor)


def test_sinks_are_its_only_parameter():
    module = full_module()
    assert [name for name, _ in module.named_parameters()] == ["sinks"]
    out, lse = module(*qkv(20))
    (out.sum() + lse.sum()).backward()
    assert module.sinks.grad.abs().min() > 0
    assert list(SparseAttention(PATTERN).parameters()) == []


def torch_saved(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda module: pickle.loads(pickle.dumps(module)),
    "torch.save": torch_saved,
}


@pytest.mark.parametrize("how", COPIES)
def test_copies(how):
    module = full_module()
    again = COPIES[how](module)
    assert again.pattern == module.pattern
    assert same(again(*qkv(20)), module(*qkv(20)))
    if how != "copy":
        with torch.no_grad():
            again.sinks += 1.0
        assert not torch.equal(again.sinks, module.sinks)


@pytest.mark.parametrize("how", COPIES)
def test_copies_of_every_pattern(how):
    for name, case in CASES.items():
        module = SparseAttention(case.make(At(12, 12)))
        again = COPIES[how](module)
        assert again.pattern == module.pattern, name
        assert torch.equal(again(*qkv(12)), module(*qkv(12))), name


def test_state_dict():
    module, other = full_module(), full_module()
    with torch.no_grad():
        other.sinks += 1.0
    assert not same(module(*qkv(20)), other(*qkv(20)))
    assert list(module.state_dict()) == ["sinks", "alibi_slopes"]
    other.load_state_dict(module.state_dict())
    assert same(module(*qkv(20)), other(*qkv(20)))
    assert list(SparseAttention(PATTERN).state_dict()) == []


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_dtypes(dtype):
    module = full_module().to(dtype)
    kept = torch.float64 if dtype == torch.float64 else torch.float32
    assert (module.sinks.dtype, module.alibi_slopes.dtype) == (kept, kept)
    out, lse = module(*qkv(20, dtype=dtype))
    assert out.dtype == dtype
    assert lse.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    out.sum().backward()
    assert module.sinks.grad.dtype == kept


def test_conversions_take_no_digits_off_sinks_and_slopes():
    module = full_module()
    model = torch.nn.Sequential(copy.deepcopy(module), torch.nn.Linear(4, 4)).to(torch.bfloat16).half().float()
    for name in ("sinks", "alibi_slopes"):
        assert torch.equal(getattr(model[0], name), getattr(module, name))
    assert model.to(torch.bfloat16)[1].weight.dtype == torch.bfloat16
    given = SparseAttention(PATTERN, sinks=torch.zeros(4, dtype=torch.bfloat16))
    assert given.half().sinks.dtype == torch.float16  # which were narrow when they came


def test_devices():
    module = full_module().to("meta")
    assert module.sinks.is_meta and module.alibi_slopes.is_meta
    module = module.to_empty(device="cpu")
    module.load_state_dict(full_module().state_dict())
    assert module(*qkv(20))[0].isfinite().all()


def test_repr_says_pattern_and_options():
    assert repr(SparseAttention(weft.causal(offset=2), scale=0.5)) == "SparseAttention(causal(offset=2), scale=0.5)"
    text = repr(torch.nn.Sequential(full_module()))
    for word in ("causal() & window(left=3)", "scale=0.3", "softcap=2.0", "return_lse=True"):
        assert word in text


def test_another_pattern_may_be_assigned():
    module = SparseAttention(PATTERN)
    module.pattern = weft.documents([7, 13])
    assert torch.equal(module(*qkv(20)), weft.attention(*qkv(20), weft.documents([7, 13])))


@pytest.mark.parametrize(
    ("option", "cure"),
    [("extra_keys", "softcap"), ("is_causal", "weft.causal()"), ("mask", "softcap"), ("scal", "scale=")],
)
def test_unknown_options(option, cure):
    refuse(lambda: SparseAttention(PATTERN, **{option: 1}), OptionError, ("SparseAttention", option, cure))


def test_heads_that_do_not_match_are_named_when_it_runs():
    module = SparseAttention(weft.per_head([PATTERN] * 3))
    refuse(lambda: module(*qkv(20)), InputError, ("per_head", "3 heads", "4"))


def test_a_parameter_stays_itself():
    """Frozen, or shared with another module."""
    sinks = torch.nn.Parameter(torch.zeros(4), requires_grad=False)
    assert SparseAttention(PATTERN, sinks=sinks).sinks is sinks


# ---- torch.export ----------------------------------------------------------------------------------------------------
def exported(module, x, **options):
    """The module after export, save and load."""
    file = io.BytesIO()
    torch.export.save(torch.export.export(module, x, **options), file)
    file.seek(0)
    return torch.export.load(file).module()


def any_size():
    batch, length = torch.export.Dim("batch", min=2, max=64), torch.export.Dim("length", min=2, max=4096)
    return ({0: batch, 2: length},) * 3


@pytest.mark.parametrize("strict", [False, True])
def test_export_and_run(strict):
    module, x = full_module(), tuple(qkv(20))
    assert same(exported(module, x, strict=strict)(*x), module(*x))


@pytest.mark.parametrize("strict", [False, True])
def test_export_with_any_batch_and_length(strict):
    module = full_module()
    again = exported(module, tuple(qkv(20, batch=3)), strict=strict, dynamic_shapes=any_size())
    for m, batch in ((20, 3), (57, 5), (2, 2)):
        assert same(again(*qkv(m, batch=batch)), module(*qkv(m, batch=batch)))


class OfItsLength(torch.nn.Module):
    def forward(self, q, k, v):
        return weft.attention(q, k, v, weft.causal() & weft.window(left=q.shape[2] // 4))


@pytest.mark.parametrize("strict", [False, True])
def test_export_of_a_pattern_made_inside(strict):
    module = OfItsLength()
    again = exported(module, tuple(qkv(20, batch=3)), strict=strict, dynamic_shapes=any_size())
    for m in (20, 57):
        assert torch.equal(again(*qkv(m)), module(*qkv(m)))


class BesideAnother(torch.nn.Module):
    """A pattern made inside of one that was made outside."""

    def forward(self, q, k, v):
        return weft.attention(q, k, v, (OUTSIDE | weft.window(left=q.shape[2] // 4)) & (OTHER | OUTSIDE))


OUTSIDE, OTHER = weft.documents([3, 8, 9]), weft.causal()


@pytest.mark.parametrize("strict", [False, True])
def test_export_of_a_pattern_made_inside_of_others(strict):
    module, x = BesideAnother(), tuple(qkv(20))
    assert torch.equal(exported(module, x, strict=strict)(*x), module(*x))


@pytest.mark.parametrize(
    ("pattern", "options", "said"),
    [
        (torch.ones(3), {}, "mask=Tensor"),
        (weft.causal(), {"scale": float("nan")}, "scale=nan"),
        (weft.causal(), {"softcap": -1.0}, "softcap=-1.0"),
        (weft.causal(), {"sinks": [0.0, 0.0]}, "sinks=list"),
        (weft.causal(), {"sinks": torch.zeros(2, dtype=torch.int64)}, "floating"),
        (weft.causal(), {"alibi_slopes": [0.0, 0.0]}, "alibi_slopes=list"),
        (weft.causal(), {"backend": 3}, "backend=3"),
    ],
)
def test_what_can_be_seen_wrong_is_refused_when_the_module_is_made(pattern, options, said):
    with pytest.raises((InputError, OptionError), match=said):
        SparseAttention(pattern, **options)


def test_dropout_in_training_alone():
    module, x = SparseAttention(PATTERN, dropout=0.5), qkv(16)
    expected = SparseAttention(PATTERN)(*x)
    assert not torch.equal(module(*x), expected)
    assert torch.equal(module.eval()(*x), expected)
    refuse(lambda: SparseAttention(PATTERN, dropout=1.5), OptionError, ("dropout=1.5", "below 1"))


def test_a_bias_and_a_score():
    module, x, table = SparseAttention(PATTERN), qkv(16), torch.rand(4, 7, requires_grad=True)
    bias = weft.bias.relative(table)
    found = module(*x, bias=bias, score=lambda score, b, h, q, k: score * 2)
    assert torch.equal(found, weft.attention(*x, PATTERN, bias=bias, score=lambda score, b, h, q, k: score * 2))
