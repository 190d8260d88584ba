"""Packed documents: each is what it would be alone, by the float64 definition; lengths drawn, some of them 0."""

from itertools import accumulate
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tiers import every, examples
from torch._dynamo.testing import CompileCounter

import weft
from weft.errors import AlignmentError, InputError, LengthError, OptionError, PatternError, UnsupportedError
from weft.testing.cases import CASES, At
from weft.testing.refusals import refuse
from weft.torch import varlen

from . import oracle
from .helpers import as_dynamo_says

LAST = "bottom-right"
SINKS = torch.linspace(-1, 1, 4, dtype=torch.float64)
SLOPES = torch.linspace(0.1, 0.4, 4, dtype=torch.float64)


def sums(lengths):
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)


def tokens(queries, keys, *, heads=(4, 2), dims=(4, 3), seed=0, dtype=torch.float64):
    random = torch.Generator().manual_seed(seed)
    shapes = ((sum(queries), heads[0], dims[0]), (sum(keys), heads[1], dims[0]), (sum(keys), heads[1], dims[1]))
    return [torch.randn(shape, generator=random, dtype=torch.float64).to(dtype) for shape in shapes]


def of_documents(tensors, queries, keys, patterns, options, seeds):
    """{name: tensor} by the definition, document by document; patterns: one for each."""
    q, k, v = tensors
    found = {"out": [], "lse": [], "dq": [], "dk": [], "dv": []} | ({"dsinks": []} if "sinks" in options else {})
    split = zip(
        q.split(queries), k.split(keys), v.split(keys), *(x.split(queries) for x in seeds), patterns, strict=True
    )
    for *parts, d_out, d_lse, pattern in split:
        m, n = len(parts[0]), len(parts[1])
        shift = n - m if m != n and LAST in set(pattern.alignments()) else 0
        three = [x[None].transpose(1, 2) for x in parts]
        given = [d_out[None].transpose(1, 2), d_lse[None].transpose(1, 2)]
        if m and n:
            one = oracle.attention(three, pattern, given, **options, shift=shift)
        else:
            one = nothing(three, given, options)
        for name, x in one.items():
            found[name].append(x if name == "dsinks" else x[0].transpose(0, 1))
    empty = {"out": seeds[0], "lse": seeds[1], "dq": q, "dk": k, "dv": v}
    found = {name: x or [torch.zeros(4) if name == "dsinks" else empty[name][:0]] for name, x in found.items()}
    return {name: sum(x).double() if name == "dsinks" else torch.cat(x) for name, x in found.items()}


def nothing(tensors, seeds, options):
    """Of a document without queries or without keys."""
    q, k, v = tensors
    lse = torch.full(seeds[1].shape, -torch.inf, dtype=torch.float64)
    found = {"out": torch.zeros_like(seeds[0]), "dq": q * 0, "dk": k * 0, "dv": v * 0}
    if "sinks" in options:
        lse = options["sinks"][None, :, None].expand(lse.shape)
        found["dsinks"] = seeds[1].sum((0, 2))
    return {"out": found.pop("out"), "lse": lse} | found


def results(tensors, queries, keys, pattern, options, seeds, same=False):
    leaves = [x.clone().requires_grad_() for x in tensors]
    sinks = options.get("sinks")
    if sinks is not None:
        options = options | {"sinks": sinks.clone().requires_grad_()}
    cu_q = sums(queries)
    cu_k = cu_q if same else sums(keys)
    out, lse = weft.varlen_attention(
        *leaves, cu_q, cu_k, pattern, max_seqlen_q=max(queries, default=0), max_seqlen_k=max(keys, default=0),
        return_lse=True, **options,
    )  # fmt: skip
    wanted = [*leaves, *([options["sinks"]] if sinks is not None else [])]
    grads = torch.autograd.grad((out, lse), wanted, seeds, allow_unused=True)
    grads = [torch.zeros_like(x) if g is None else g for g, x in zip(grads, wanted, strict=True)]
    return dict(zip(("out", "lse", "dq", "dk", "dv", "dsinks"), (out, lse, *grads), strict=False))


def check(queries, keys, pattern, options=None, *, same=False, each=None, seed=0):
    options = options or {}
    tensors = tokens(queries, keys, seed=seed)
    random = torch.Generator().manual_seed(seed + 1)
    seeds = [torch.randn(sum(queries), 4, *last, generator=random, dtype=torch.float64) for last in ((3,), ())]
    expected = of_documents(tensors, queries, keys, each or [pattern] * len(queries), options, seeds)
    oracle.assert_close(results(tensors, queries, keys, pattern, options, seeds, same), expected)


QUERIES, KEYS = [5, 0, 9, 12, 1, 7, 0], [9, 4, 9, 5, 12, 0, 0]
OPTIONS = {
    "none": {},
    "scale and softcap": {"scale": 0.4, "softcap": 1.5},
    "sinks": {"sinks": SINKS},
    "slopes": {"alibi_slopes": SLOPES},
}
ALIGNED = {  # name -> (pattern, whether all documents are one plan)
    "full": (weft.full(), True),
    "causal": (weft.causal(align=LAST), True),
    "causal, top-left": (weft.causal(align="top-left"), True),
    "window": ((weft.causal() & weft.window(3)).aligned(LAST), True),
    "both sides": (weft.window(2, 1, align=LAST), True),
    "chunks": ((weft.chunks(4) & weft.causal()).aligned("top-left"), True),
    "prefix": (weft.causal(align=LAST) | weft.prefix(2), True),
    "longformer": (weft.longformer(4, 1, align=LAST), False),  # the keys of a document's only query are a list
    "outside": (~weft.window(1, 1, align=LAST), True),
    "heads": (weft.per_head([weft.causal(), weft.full(), weft.nothing(), weft.window(2)]).aligned(LAST), True),
    "dilated": (weft.dilated(2, 1, 2, align=LAST), False),
    "strided": (weft.strided(3, align=LAST), False),
    "shifted": (weft.causal(align=LAST).shift(q=2), True),
    "periodic": (weft.periodic_keys(3), False),
    "a list": (weft.global_tokens([0, 3, 7], rows=False) | weft.window(1, 0, align=LAST), False),
}


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("name", every(4, ALIGNED))
def test_rectangular_documents(name, option):
    pattern, whole = ALIGNED[name]
    if option == "slopes" and name in ("full", "periodic"):
        pattern = pattern & weft.window(left=2**31, align=LAST)  # which says what distances are
    check(QUERIES, KEYS, pattern, OPTIONS[option])
    assert (varlen._whole(pattern, np.array(QUERIES), np.array(KEYS), same=False) is not None) == whole


OF_ONE_LENGTH = {"bits", "sized", "block_table", "excerpt"}  # which no other length suits


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize(
    "name", every(5, [name for name, case in CASES.items() if not case.square and name not in OF_ONE_LENGTH])
)
def test_queries_and_keys_that_are_the_same_tokens(name, option):
    """No alignment is asked for; every pattern that any length suits."""
    pattern = CASES[name].make(At(12, 12))
    if pattern.extent()[0] is not None:
        pattern = varlen.of_document(pattern, 1)
    check(QUERIES, QUERIES, pattern, OPTIONS[option], same=True)


def test_one_plan_where_only_distances_matter():
    pattern = weft.causal() & weft.dilated(3, 0, 2)
    lengths = np.array(QUERIES)
    assert varlen._whole(pattern, lengths, lengths, same=True) == weft.documents(QUERIES) & pattern


def test_a_row_for_each_document():
    """per_batch, padding and prefix: row i is document i's."""
    windows = [weft.window(i, 0, align=LAST) for i in range(7)]
    check(QUERIES, KEYS, weft.per_batch(windows), each=windows)
    padded = weft.padding([5, 4, 3, 5, 2, 0, 0]) & weft.causal(align=LAST)
    each = [weft.padding(n) & weft.causal(align=LAST) for n in (5, 4, 3, 5, 2, 0, 0)]
    check(QUERIES, KEYS, padded, each=each)
    unlike = [weft.dilated(i + 1, 0, 2, align=LAST) for i in range(7)]  # one by one
    check(QUERIES, KEYS, weft.per_batch(unlike), {"sinks": SINKS}, each=unlike)


drawn = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=12)


@settings(max_examples=examples(40), deadline=None)
@given(drawn, st.sampled_from(sorted(ALIGNED)), st.sampled_from(sorted(OPTIONS)), st.integers(0, 99))
def test_any_lengths(lengths, name, option, seed):
    queries, keys = [a for a, _ in lengths], [b for _, b in lengths]
    pattern, _ = ALIGNED[name]
    if option == "slopes" and name in ("full", "periodic"):
        pattern = pattern & weft.window(left=2**31, align=LAST)
    check(queries, keys, pattern, OPTIONS[option], seed=seed)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("keys", [[1], [0], [3, 0, 9]], ids=str)
def test_no_document_has_queries(keys, option):
    """Results are empty, and gradients of keys and values are 0."""
    for name in ("causal", "a list"):  # all documents in one plan, and one by one
        check([0] * len(keys), keys, ALIGNED[name][0], OPTIONS[option])


def dense_documents(tensors, queries, keys, window):
    """Out and gradients under causal windows aligned last to last, document by document, in float64."""
    leaves = [x.clone().requires_grad_() for x in tensors]
    outs = []
    for q, k, v in zip(*(x.split(y) for x, y in zip(leaves, (queries, keys, keys), strict=True)), strict=True):
        shift = len(k) - len(q)
        distance = torch.arange(len(q))[:, None] + shift - torch.arange(len(k))
        live = (distance >= 0) & (distance <= window)
        scores = torch.einsum("mhd,nhd->hmn", q, k) * q.shape[-1] ** -0.5
        weights = scores.masked_fill(~live, -torch.inf).softmax(-1).nan_to_num(0.0)
        outs.append(torch.einsum("hmn,nhd->mhd", weights, v))
    out = torch.cat(outs)
    return [out, *torch.autograd.grad(out.square().sum(), leaves)]


def many_documents(count, longest, seed):
    random = np.random.default_rng(seed)
    queries = random.integers(0, longest + 1, count)
    keys = np.where(random.random(count) < 0.1, 0, queries + random.integers(0, 60, count))
    queries[random.random(count) < 0.1] = 0
    return queries.tolist(), keys.tolist()


@pytest.mark.parametrize(
    ("count", "longest"), [(40, 200), pytest.param(300, 3000, marks=pytest.mark.wide, id="300 documents of up to 3000")]
)
def test_many_documents(count, longest):
    queries, keys = many_documents(count, longest, seed=count)
    tensors = tokens(queries, keys, heads=(1, 1), dims=(4, 4))
    expected = dense_documents(tensors, queries, keys, 100)
    leaves = [x.clone().requires_grad_() for x in tensors]
    pattern = (weft.causal() & weft.window(100)).aligned(LAST)
    out = weft.varlen_attention(*leaves, sums(queries), sums(keys), pattern, max_seqlen_q=longest)
    for got, x in zip([out, *torch.autograd.grad(out.square().sum(), leaves)], expected, strict=True):
        torch.testing.assert_close(got, x, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("lengths", [[], [0], [0, 0, 0], [1], [0, 1, 0]])
def test_hardly_anything(lengths):
    q, k, v = tokens(lengths, lengths)
    cu = sums(lengths)
    out, lse = weft.varlen_attention(q, k, v, cu, cu, weft.causal(), return_lse=True)
    assert (out.shape, lse.shape) == ((sum(lengths), 4, 3), (sum(lengths), 4))
    torch.testing.assert_close(out, v.repeat_interleave(2, 1))  # a token sees itself


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dtypes_and_kinds_of_sums(dtype):
    q, k, v = tokens(QUERIES, QUERIES, dtype=dtype)
    cu = sums(QUERIES)
    expected = weft.varlen_attention(q, k, v, cu, cu, weft.causal())
    assert expected.dtype == dtype
    for kind in (cu.long(), cu.numpy()):
        assert torch.equal(weft.varlen_attention(q, k, v, kind, None, weft.causal()), expected)
        assert torch.equal(weft.varlen_attention(q, k, v, kind, kind, weft.causal()), expected)
    assert torch.equal(weft.varlen_attention(q, k, v, cu, cu.clone(), weft.causal(align="top-left")), expected)


def test_extra_keys():
    q, k, v = tokens(QUERIES, QUERIES)
    extra = torch.randn(2, 6, 2, 4, dtype=torch.float64)
    keys, values = extra[0], extra[1, ..., :3]
    cu = sums(QUERIES)
    for pattern in (weft.causal(), weft.dilated(2, 0, 2) & weft.chunks(5)):
        out = weft.varlen_attention(q, k, v, cu, cu, pattern, extra_keys=keys, extra_values=values)
        for at, length in zip(cu.tolist(), QUERIES, strict=False):
            part = [x[at : at + length] for x in (q, k, v)]
            if length:
                alone = weft.attention(*part, pattern, layout="thd", extra_keys=keys, extra_values=values)
                torch.testing.assert_close(out[at : at + length], alone)


# ---- what asks for places --------------------------------------------------------------------------------------------
def by_document(score, b, h, q, k):
    return score * (1 + 0.1 * b) + 0.01 * h - 0.02 * (q - k)


PLACED = {
    "score": {"score": by_document},
    "dropout": {"dropout": 0.4, "seed": 11},
    "bias": {"bias": torch.linspace(-1, 1, 7 * 4 * 12 * 12, dtype=torch.float64).reshape(7, 4, 12, 12)},
    "all": {"score": by_document, "dropout": 0.2, "seed": 3, "sinks": SINKS, "softcap": 2.0},
}


def alone(tensors, at, i, pattern, options):
    """(out, lse) of document i in batch row i, where others are zeros."""
    rows = [
        torch.zeros(i + 1, some.stop - some.start, *x.shape[1:], dtype=x.dtype)
        for x, some in zip(tensors, at, strict=True)
    ]
    for row, x, some in zip(rows, tensors, at, strict=True):
        row[i] = x[some]
    if "bias" in options:
        m, n = (rows[j].shape[1] for j in (0, 1))
        options = options | {"bias": options["bias"][: i + 1, :, :m, :n]}
    return [x[i] for x in weft.attention(*rows, pattern, layout="bshd", return_lse=True, **options)]


@pytest.mark.parametrize("name", PLACED)
@pytest.mark.parametrize("kind", every(2, ["causal", "window", "heads", "dilated"]))
def test_score_bias_and_dropout_count_in_documents(name, kind):
    """b is the document, q and k are counted in it, forward and gradients."""
    pattern, _ = ALIGNED[kind]
    queries, keys = QUERIES, [9, 4, 9, 12, 12, 7, 3]
    x = [t.requires_grad_() for t in tokens(queries, keys)]
    out, lse = weft.varlen_attention(*x, sums(queries), sums(keys), pattern, return_lse=True, **PLACED[name])
    starts, key_starts = sums(queries).tolist(), sums(keys).tolist()
    found = []
    for i in range(7):
        mine, theirs = slice(*starts[i : i + 2]), slice(*key_starts[i : i + 2])
        if queries[i]:
            found.append(alone(x, (mine, theirs, theirs), i, pattern, PLACED[name]))
    wanted = [torch.cat(parts) for parts in zip(*found, strict=True)]
    torch.testing.assert_close(out, wanted[0], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(lse, wanted[1], rtol=1e-10, atol=1e-10)
    seed = torch.randn_like(out)
    for one, two in zip(
        torch.autograd.grad((out * seed).sum(), x), torch.autograd.grad((wanted[0] * seed).sum(), x), strict=True
    ):
        torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-10)


def test_a_bias_and_its_gradient_by_documents():
    x, table = tokens([3, 5], [3, 5]), torch.randn(2, 4, 5, 5, dtype=torch.float64, requires_grad=True)
    out = weft.varlen_attention(*x, sums([3, 5]), None, weft.causal(), bias=table)
    (found,) = torch.autograd.grad(out.square().sum(), table)
    assert found[0, :, 3:].eq(0).all() and found[0, :, :3, :3].ne(0).any() and found[1].ne(0).any()


def test_packed_once():
    q, k, v = tokens(QUERIES, KEYS)
    pattern = weft.causal(align=LAST)
    with mock.patch.object(varlen, "_whole", side_effect=varlen._whole) as asked:
        for _ in range(3):
            weft.varlen_attention(q, k, v, sums(QUERIES), sums(KEYS), pattern)
        assert asked.call_count == 1
        weft.varlen_attention(q, k, v, sums(QUERIES[::-1]), sums(KEYS[::-1]), pattern)
        assert asked.call_count == 2
    with mock.patch.object(varlen._packed, "most", 3), mock.patch.dict(varlen._packed, clear=True):
        for last in range(6):
            lengths = [*QUERIES[:-1], 0, last]
            q, k, v = tokens(lengths, lengths)
            weft.varlen_attention(q, k, v, sums(lengths), None, pattern)
        assert len(varlen._packed) <= 3


def test_a_packed_pattern_as_any_other():
    """Planned, proven, and under torch.compile with other lengths as data."""
    from weft.acsr.packed import packed

    torch._dynamo.reset()
    counter = CompileCounter()
    compiled = torch.compile(
        lambda q, k, v, mask: weft.attention(q, k, v, mask, layout="thd"), backend=counter, fullgraph=True, dynamic=True
    )
    for queries, keys in ((QUERIES, KEYS), ([3, 8], [4, 30])):
        mask = packed(weft.causal(align=LAST) & weft.window(3, align=LAST), queries, keys)
        x = tokens(queries, keys)
        weft.plan(mask, *x, layout="thd").verify()
        torch.testing.assert_close(
            compiled(*x, mask), weft.varlen_attention(*x, sums(queries), sums(keys), mask.body.part)
        )
    assert counter.frame_count == 1


# ---- refused ---------------------------------------------------------------------------------------------------------
X, CU, CAUSAL = tokens(QUERIES, QUERIES), sums(QUERIES), weft.causal()


def call(cu_q=CU, cu_k=None, pattern=CAUSAL, x=None, **options):
    return lambda: weft.varlen_attention(*(X if x is None else x), cu_q, cu_k, pattern, **options)


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ((torch.tensor([0, 5, 3, 34]),), InputError, ("cu_seqlens_q falls after position 1",)),
        ((torch.tensor([1, 34]),), InputError, ("begins with 1",)),
        ((torch.tensor([0, 33]),), InputError, ("ends at 33", "34 tokens")),
        ((torch.tensor([0.0, 34.0]),), InputError, ("float32", "integers")),
        ((torch.tensor([[0, 34]]),), InputError, ("(1, 2)",)),
        (([0, 34],), InputError, ("cu_seqlens_q is list",)),
        ((torch.zeros(0, dtype=torch.int32),), InputError, ("(0,)",)),
        ((CU.to("meta"),), InputError, ("cu_seqlens_q is meta, q is on cpu",)),
        ((CU, torch.tensor([0, 33])), InputError, ("cu_seqlens_k ends at 33",)),
        ((CU, torch.tensor([0, 34]), weft.causal(align=LAST)), InputError, ("7 documents of queries and 1 of keys",)),
        ((CU, CU.clone()), AlignmentError, ("queries of a document", '.aligned("bottom-right")')),
        ((CU, None, weft.per_batch([CAUSAL] * 3)), PatternError, ("3 batch rows", "7 documents")),
        ((CU, None, weft.documents([34])), LengthError, ("34 tokens", "M=5")),
        ((CU, None, lambda q, k: q >= k), InputError, ("varlen_attention(..., mask=function)", "weft.recognize(mask)")),
    ],
)  # fmt: skip
def test_refused(given, error, words):
    for _ in range(2):
        refuse(call(*given), error, words)


def test_other_refusals():
    refuse(call(max_seqlen_q=11), InputError, ("document 3 has 12 tokens", "max_seqlen_q is 11"))
    refuse(call(max_seqlen_k=11), InputError, ("max_seqlen_k is 11",))
    refuse(call(causal=True), OptionError, ("varlen_attention(causal=...)", "weft.causal()"))
    refuse(call(layout="thd"), OptionError, ("takes no layout",))
    refuse(call(bias=torch.zeros(34, 34)), OptionError, ("bias=(34, 34)", "(7, 4, 12, 12)"))
    refuse(call(dropout=2.0), OptionError, ("dropout",))
    slopes = {"alibi_slopes": SLOPES, "dropout": 0.5, "seed": 1}
    unlike = call(CU, sums(KEYS), weft.causal(align=LAST), tokens(QUERIES, KEYS), **slopes)
    refuse(unlike, UnsupportedError, ("alibi_slopes", "weft.bias.alibi(slopes)"))
    refuse(call(x=[t[None] for t in X]), InputError, ("q has 4 dimensions", "(T, Hq, D)"))
    refuse(call(x=[t.transpose(0, 1) for t in X]), InputError, ("34 heads of 4 tokens",))


def test_inside_a_compiled_function_it_is_refused():
    torch._dynamo.reset()
    compiled = torch.compile(weft.varlen_attention, backend="eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported, match=as_dynamo_says("lengths are read on the host")):
        compiled(*X, CU, CU, CAUSAL)
