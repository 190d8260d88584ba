"""NATTEN's interface: its rule for neighbourhoods, written down here once more, and what it accepts and refuses."""

import importlib
import inspect
import sys
import warnings
from itertools import product

import pytest
import torch

import weft.integrations.natten as natten
from weft.errors import InputError, OptionError, UnsupportedError
from weft.integrations.natten import checks
from weft.integrations.natten.utils.varlen import generate_varlen_parameters
from weft.testing.refusals import refuse
from weft.testing.tolerance import assert_close as within


@pytest.fixture(autouse=True)
def told(monkeypatch):
    """Knobs were mentioned already."""
    monkeypatch.setattr(checks, "_told", True)


def keys_of(query, length, kernel, stride, dilation, causal):
    """The keys of one query on one axis, as NATTEN's documentation has them: in the residue class of the query a window
    around the leader of its group, pushed inwards at both ends.
    """
    place, rest = divmod(query, dilation)
    count = len(range(rest, length, dilation))
    leader = place // stride * stride + (stride - 1 if causal else stride // 2)
    leader = min(leader, count - 1)
    if causal:
        first = max(leader - kernel + 1, 0)
        return {rest + dilation * at for at in range(first, place + 1)}
    first = min(max(leader - kernel // 2, 0), count - kernel)
    return {rest + dilation * at for at in range(first, first + kernel)}


def dense(grid, kernel, stride, dilation, causal):
    """(tokens, tokens) booleans."""
    points = list(product(*map(range, grid)))
    seen = [
        [keys_of(q, *one) for q in range(one[0])] for one in zip(grid, kernel, stride, dilation, causal, strict=True)
    ]
    return torch.tensor(
        [[all(b in axis[a] for a, b, axis in zip(q, k, seen, strict=True)) for k in points] for q in points]
    )


def assert_close(ours, theirs):
    """Results of one dtype whose sums are in another order."""
    tolerance = {torch.float64: 1e-11, torch.float32: 1e-5}[ours.dtype]
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


def drawn(*shape, dtype=torch.float64, seed=0):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def inputs(grid, heads=(4, 4), dims=(8, 8), batch=2):
    shapes = ((heads[0], dims[0]), (heads[1], dims[0]), (heads[1], dims[1]))
    return [drawn(batch, *grid, *shape, seed=i).requires_grad_() for i, shape in enumerate(shapes)]


def softmaxed(q, k, v, mask=None, scale=None, extra=()):
    """(out, lse) of (B, S, H, D) by a dense mask; extra: keys and values that all see."""
    group = q.shape[2] // k.shape[2]
    if extra:
        k, v = (torch.cat(both, 1) for both in zip((k, v), extra, strict=True))
        mask = torch.cat([mask, mask.new_ones(mask.shape[0], extra[0].shape[1])], 1)
    k, v = (x.repeat_interleave(group, 2) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * (scale or q.shape[-1] ** -0.5)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v), scores.logsumexp(-1).transpose(1, 2)


def gradients(out, lse, leaves):
    weights = drawn(*out.shape, seed=7), drawn(*lse.shape, seed=8)
    return torch.autograd.grad((out * weights[0]).sum() + (lse * weights[1]).sum(), leaves)


CASES = [
    ((13,), (4,), (1,), (1,), (False,)),
    ((13,), (13,), (1,), (1,), (True,)),
    ((17,), (5,), (2,), (3,), (True,)),
    ((9, 8), (3, 4), (2, 1), (2, 2), (False, False)),
    ((7, 10), (7, 4), (1, 4), (1, 2), (True, False)),
    ((6, 5, 4), (3, 2, 4), (1, 2, 4), (2, 1, 1), (True, False, False)),
    ((5, 4, 6), (5, 4, 6), (1, 1, 1), (1, 1, 1), (False, False, False)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("extra", [0, 3])
def test_neighbourhoods(case, extra):
    """Out, lse and every gradient, with grouped heads, values of another head dimension and keys that all see."""
    grid, rank = case[0], len(case[0])
    tensors = inputs(grid, heads=(4, 2), dims=(8, 6))
    more = [drawn(2, extra, 2, d, seed=3 + d).requires_grad_() for d in (8, 6)] if extra else []
    given = dict(zip(("additional_keys", "additional_values"), more, strict=False))
    arguments = dict(zip(("kernel_size", "stride", "dilation", "is_causal"), case[1:], strict=True))
    operation = (natten.na1d, natten.na2d, natten.na3d)[rank - 1]
    out, lse = operation(*tensors, **arguments, scale=0.3, **given, return_lse=True)
    expected, expected_lse = softmaxed(*(x.flatten(1, rank) for x in tensors), dense(*case), 0.3, more)
    assert out.shape == (*tensors[0].shape[:-1], 6) and lse.shape == tensors[0].shape[:-1]
    assert_close(out.flatten(1, rank), expected)
    assert_close(lse.flatten(1, rank), expected_lse)
    leaves = [*tensors, *more]
    for ours, theirs in zip(
        gradients(out, lse, leaves), gradients(expected.view_as(out), expected_lse.view_as(lse), leaves), strict=True
    ):
        assert_close(ours, theirs)
    assert_close(operation(*tensors, **arguments, scale=0.3, **given), out)


def test_integers_and_absent_arguments():
    tensors = inputs((6, 6))
    expected = natten.na2d(*tensors, kernel_size=(3, 3), stride=(1, 1), dilation=(2, 2), is_causal=(False, False))
    for given in ({"dilation": 2}, {"dilation": [2, 2], "stride": None, "is_causal": None, "scale": 0}):
        assert torch.equal(natten.na2d(*tensors, 3, **given), expected)
    assert torch.equal(natten.na2d(*tensors, 3, 1, 2, False, None, None, None, {"backend": "flex-fmha"}), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtypes_and_strides(dtype):
    """Tensors that cannot be viewed as a line of tokens too."""
    fused = drawn(2, 8, 9, 3, 4, 16, dtype=torch.float32).to(dtype)
    tensors = [x.transpose(1, 2) for x in fused.unbind(3)]
    out = natten.na2d(*tensors, 3)
    assert out.dtype == dtype and out.shape == (2, 9, 8, 4, 16)
    flat, mask = [x.flatten(1, 2) for x in tensors], dense((9, 8), (3, 3), (1, 1), (1, 1), (False, False))
    reference, plain = softmaxed(*(x.double() for x in flat), mask)[0], softmaxed(*flat, mask)[0]
    within("out", out.flatten(1, 2), reference, plain)


# ---- attention and merging -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("is_causal", [False, True])
def test_attention(is_causal):
    q, k, v = (drawn(2, n, h, d, seed=n).requires_grad_() for n, h, d in ((7, 4, 8), (9, 2, 8), (9, 2, 6)))
    out, lse = natten.attention(q, k, v, is_causal=is_causal, return_lse=True)
    mask = torch.ones(7, 9, dtype=torch.bool)
    expected, expected_lse = softmaxed(q, k, v, mask.tril() if is_causal else mask)
    assert_close(out, expected)
    assert_close(lse, expected_lse)
    for ours, theirs in zip(gradients(out, lse, (q, k, v)), gradients(expected, expected_lse, (q, k, v)), strict=True):
        assert_close(ours, theirs)


LENGTHS = torch.tensor([5, 7, 3], dtype=torch.int32), torch.tensor([4, 9, 2], dtype=torch.int32)


def packed():
    return [drawn(1, 15, h, 8, seed=h).requires_grad_() for h in (4, 2, 2)]


@pytest.mark.parametrize("is_causal", [False, True])
def test_packed_sequences(is_causal):
    q, k, v = packed()
    sums = generate_varlen_parameters(q, k, v, *LENGTHS)
    assert [x.tolist() for x in sums[:2]] == [[0, 5, 12, 15], [0, 4, 13, 15]] and sums[2:] == (7, 9)
    names = ("cumulative_seqlen_Q", "cumulative_seqlen_KV", "max_seqlen_Q", "max_seqlen_KV")
    by_sums = natten.attention(q, k, v, is_causal, return_lse=True, **dict(zip(names, sums, strict=True)))
    out, lse = natten.attention(q, k, v, is_causal, seqlens_Q=LENGTHS[0], seqlens_KV=LENGTHS[1], return_lse=True)
    assert torch.equal(out, by_sums[0]) and torch.equal(lse, by_sums[1])
    parts = zip(*(x.split(n.tolist(), 1) for x, n in zip((q, k, v), (*LENGTHS, LENGTHS[1]), strict=True)), strict=True)
    each = [softmaxed(*part, None if not is_causal else triangle(*part[:2])) for part in parts]
    expected, expected_lse = (torch.cat(x, 1) for x in zip(*each, strict=True))
    assert_close(out, expected)
    assert_close(lse, expected_lse)
    assert generate_varlen_parameters(q, k, v) == (None, None, 0, 0)
    assert torch.equal(natten.attention(q, k, v, max_seqlen_Q=0, max_seqlen_KV=0), natten.attention(q, k, v))


def triangle(q, k):
    return torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).tril()


def test_merging():
    q, k, v = (drawn(2, 12, 4, 8, seed=i).requires_grad_() for i in range(3))
    cuts = (5, 4, 3)
    parts = [natten.attention(q, *kv, return_lse=True) for kv in zip(k.split(cuts, 1), v.split(cuts, 1), strict=True)]
    expected = natten.attention(q, k, v, return_lse=True)
    theirs = gradients(*expected, (q, k, v))
    for flags in ({}, {"torch_compile": False, "use_autograd_fix": False}):
        merged = natten.merge_attentions(*map(list, zip(*parts, strict=True)), **flags)
        for one, other in zip(merged, expected, strict=True):
            assert_close(one, other)
        loss = sum((x * drawn(*x.shape, seed=7 + i)).sum() for i, x in enumerate(merged))
        for ours, other in zip(torch.autograd.grad(loss, (q, k, v), retain_graph=True), theirs, strict=True):
            assert_close(ours, other)


# ---- modules ---------------------------------------------------------------------------------------------------------
MODULES = [
    (natten.NeighborhoodAttention1D, (9,), {"kernel_size": 4, "is_causal": True}),
    (natten.NeighborhoodAttention2D, (6, 8), {"kernel_size": (3, 4), "dilation": (2, 1), "qkv_bias": False}),
    (natten.NeighborhoodAttention3D, (4, 4, 6), {"kernel_size": (2, 4, 3), "stride": (1, 2, 3), "qk_scale": 0.2}),
]


@pytest.mark.parametrize("kind, grid, arguments", MODULES, ids=lambda x: getattr(x, "__name__", ""))
def test_modules(kind, grid, arguments):
    module = kind(embed_dim=32, num_heads=4, proj_drop=0.5, **arguments).double()
    bias = ["qkv.bias"] if arguments.get("qkv_bias", True) else []
    assert list(module.state_dict()) == ["qkv.weight", *bias, "proj.weight", "proj.bias"]
    assert "num_heads=4" in repr(module) and module.proj_drop.p == 0.5
    x = drawn(2, *grid, 32).requires_grad_()
    out = module.eval()(x)
    q, k, v = module.qkv(x).view(2, *grid, 3, 4, 8).unbind(len(grid) + 1)
    names = ("kernel_size", "stride", "dilation", "is_causal")
    case = [getattr(module, name) for name in names]
    rank = len(grid)
    attended, _ = softmaxed(*(t.flatten(1, rank) for t in (q, k, v)), dense(grid, *case), arguments.get("qk_scale"))
    expected = module.proj(attended.flatten(-2)).view(x.shape)
    assert_close(out, expected)
    for ours, theirs in zip(
        torch.autograd.grad(out.square().sum(), (x, *module.parameters())),
        torch.autograd.grad(expected.square().sum(), (x, *module.parameters())), strict=True,
    ):  # fmt: skip
        assert_close(ours, theirs)


# ---- torch.compile ---------------------------------------------------------------------------------------------------
@pytest.mark.more
@pytest.mark.parametrize("kind, grid, arguments", MODULES, ids=lambda x: getattr(x, "__name__", ""))
def test_compiled_modules(kind, grid, arguments):
    torch._dynamo.reset()
    module = kind(embed_dim=32, num_heads=4, **arguments)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    for factor in (1, 2):
        x = drawn(2, *(n * factor for n in grid), 32, dtype=torch.float32)
        assert_close(compiled(x), module(x))
    (ours,), (theirs,) = (torch.autograd.grad(f(x).square().sum(), module.proj.bias) for f in (compiled, module))
    assert_close(ours, theirs)


@pytest.mark.more
@pytest.mark.parametrize("is_causal", [False, True])
def test_compiled_packed_sequences(is_causal):
    """One graph for all lengths: they are data."""
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    q, k, v = packed()

    def attend(q, k, v, sums, key_sums):
        return natten.attention(
            q, k, v, is_causal, cumulative_seqlen_Q=sums, cumulative_seqlen_KV=key_sums, max_seqlen_Q=15,
            max_seqlen_KV=15, backend="cutlass-fmha",
        )  # fmt: skip

    compiled = torch.compile(attend, fullgraph=True, backend=counter)
    for lengths in (LENGTHS, [x.flip(0) for x in LENGTHS]):
        sums = generate_varlen_parameters(q, k, v, *lengths)[:2]
        assert_close(compiled(q, k, v, *sums), attend(q, k, v, *sums))
    assert counter.frame_count == 1
    for ours, theirs in zip(
        *(torch.autograd.grad(f(q, k, v, *sums).square().sum(), (q, k, v)) for f in (compiled, attend)), strict=True
    ):
        assert_close(ours, theirs)


# ---- what is said, kept and refused ----------------------------------------------------------------------------------
def test_knobs_are_mentioned_once(monkeypatch):
    monkeypatch.setattr(checks, "_told", False)
    tensors = inputs((6, 6))
    with pytest.warns(UserWarning, match=r"na2d\(backend, q_tile_shape\): weft chooses"):
        out = natten.na2d(*tensors, 3, backend="hopper-fna", q_tile_shape=(4, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = natten.na2d(*tensors, 3, kernel_schedule="pp", run_persistent_kernel=False, torch_compile=True)
    assert torch.equal(out, again)


def test_switches():
    assert not natten.are_deterministic_algorithms_enabled() and natten.is_kv_parallelism_in_fused_na_enabled()
    natten.use_kv_parallelism_in_fused_na(False)
    natten.use_deterministic_algorithms()
    try:
        assert natten.are_deterministic_algorithms_enabled()
        with pytest.raises(RuntimeError, match="excludes it"):
            natten.use_kv_parallelism_in_fused_na()
        assert not natten.is_kv_parallelism_in_fused_na_enabled()
        out = natten.na1d(*inputs((9,)), 3)
    finally:
        natten.use_deterministic_algorithms(False)
        natten.use_kv_parallelism_in_fused_na()
    assert torch.equal(out, natten.na1d(*inputs((9,)), 3))
    asked = (natten.is_memory_usage_default, natten.is_memory_usage_strict, natten.is_memory_usage_unrestricted)
    for pref, expected in (("strict", 1), ("unrestricted", 2), ("default", 0)):
        natten.set_memory_usage_preference(pref)
        assert [f() for f in asked] == [i == expected for i in range(3)]
    refuse(lambda: natten.set_memory_usage_preference("small"), OptionError, ["strict"])
    natten.allow_flex_compile(backprop=True)
    assert natten.is_flex_compile_allowed() and natten.is_flex_compile_backprop_allowed()
    natten.disable_flex_compile_backprop()
    assert natten.is_flex_compile_allowed() and not natten.is_flex_compile_backprop_allowed()
    natten.disable_flex_compile()
    assert not natten.is_flex_compile_allowed()
    assert natten.get_configs_for_cutlass_fna(*inputs((9,))) == []


WRONG = [
    (OptionError, "kernel_size", {"kernel_size": 1}),
    (OptionError, "kernel_size", {"kernel_size": (3, 3, 3)}),
    (OptionError, "kernel_size", {"kernel_size": 3.0}),
    (OptionError, "stride", {"stride": 0}),
    (OptionError, "dilation", {"dilation": (1, 0)}),
    (OptionError, "is_causal", {"is_causal": 1}),
    (InputError, "axis 0", {"kernel_size": 7}),
    (InputError, "axis 1", {"dilation": (1, 3)}),
    (InputError, "stride 4", {"stride": 4}),
    (InputError, "additional_values is missing", {"additional_keys": torch.zeros(2, 3, 4, 8)}),
    (UnsupportedError, "cutlass-fna", {"backend": "cutlass-fmha"}),
    (OptionError, "coop", {"kernel_schedule": "fast"}),
    (OptionError, "three integers", {"q_tile_shape": "8x8"}),
    (ValueError, "no knob", {"attention_kwargs": {"tile": 3}}),
    (TypeError, "no knob", {"attention_kwargs": {"scale": 3}}),
]


@pytest.mark.parametrize("error, words, given", WRONG, ids=lambda x: x if isinstance(x, str) else "")
def test_arguments_that_mean_nothing(error, words, given):
    with pytest.raises(error, match=words):
        natten.na2d(*inputs((6, 8)), **{"kernel_size": 3, **given})
    with pytest.raises(TypeError, match="kernelsize"):
        natten.na2d(*inputs((6, 8)), 3, kernelsize=3)


def test_tensors_that_do_not_fit():
    q, k, v = inputs((6, 8))
    attend = lambda *tensors: lambda: natten.na2d(*tensors, 3)  # noqa: E731
    refuse(lambda: natten.na1d(q, k, v, 3), InputError, ["(batch, X, heads, head_dim)"])
    refuse(attend(q, k[:, :4], v), InputError, ["(4, 8)"])
    refuse(attend(q, k.float(), v), InputError)
    refuse(attend(q, k[..., :3, :], v[..., :3, :]), InputError)
    refuse(attend(q, k[:1], v), InputError)
    refuse(attend(q.to_sparse(), k, v), UnsupportedError, ["sparse"])
    refuse(attend(torch.nested.nested_tensor([q[0], q[1]]), k, v), UnsupportedError, ["nested"])
    for made, words in (
        (lambda: natten.NeighborhoodAttention2D(30, 4, 3), "divide"),
        (lambda: natten.NeighborhoodAttention2D(32, 4, 3)(torch.zeros(2, 9, 32)), "(B, X, Y, 32)"),
        (lambda: natten.NeighborhoodAttention2D(32, 4, 3)(torch.zeros(2, 9, 9, 16)), "(B, X, Y, 32)"),
    ):
        refuse(made, ValueError, [words])


PACKED = {
    "int32": {"seqlens_Q": LENGTHS[0].long(), "seqlens_KV": LENGTHS[1].long()},
    "NoneType": {"seqlens_Q": LENGTHS[0]},
    "and 2 entries": {"seqlens_Q": LENGTHS[0], "seqlens_KV": LENGTHS[1][:2]},
    "max_seqlen_Q is missing": {"cumulative_seqlen_Q": LENGTHS[0], "cumulative_seqlen_KV": LENGTHS[0]},
    "longest": dict.fromkeys(("cumulative_seqlen_Q", "cumulative_seqlen_KV"), LENGTHS[0])
    | {"max_seqlen_Q": 16, "max_seqlen_KV": 3},
}


@pytest.mark.parametrize("words", PACKED)
def test_lengths_that_do_not_fit(words):
    with pytest.raises(InputError, match=words if words != "int32" else r"\.int\(\)"):
        natten.attention(*packed(), **PACKED[words])


def test_more_than_one_packed_row():
    lengths = torch.tensor([9], dtype=torch.int32)
    refuse(lambda: generate_varlen_parameters(*inputs((9,)), lengths, lengths), InputError, ["one batch row"])


# ---- as natten -------------------------------------------------------------------------------------------------------
def test_stands_in_for_natten(monkeypatch):
    """A model that imports natten, and its submodules, gets this one."""
    monkeypatch.setitem(sys.modules, "natten", natten)
    for name in ("natten.functional", "natten.utils", "natten.utils.varlen"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    found = {}
    exec("from natten import NeighborhoodAttention2D, na2d\nimport natten.functional", found)
    assert found["na2d"] is natten.na2d
    made = importlib.import_module("natten.utils.varlen")
    assert made.generate_varlen_parameters(*packed(), *LENGTHS)[2] == 7
    for name in ("natten.functional", "natten.utils", "natten.utils.varlen", "natten.context", "natten.checks"):
        sys.modules.pop(name, None)


def test_signatures():
    """The order of NATTEN 0.21.7, which positional calls rely on."""
    expected = (
        "query key value kernel_size stride dilation is_causal scale additional_keys additional_values "
        "attention_kwargs backend q_tile_shape kv_tile_shape backward_q_tile_shape backward_kv_tile_shape "
        "backward_kv_splits backward_use_pt_reduction run_persistent_kernel kernel_schedule torch_compile return_lse"
    )
    for operation in (natten.na1d, natten.na2d, natten.na3d):
        assert " ".join(inspect.signature(operation).parameters) == expected
        assert operation.__name__ in operation.__doc__
    assert all(hasattr(natten, name) for name in natten.__all__)
