"""Score functions: traced, against the same functions run on dense tensors, and against the float64 definition."""

import numpy as np
import pytest
import torch

import weft
from weft.errors import OptionError, UnsupportedError
from weft.testing.score_functions import FUNCTIONS, At

from . import oracle
from .helpers import as_dynamo_says, qkv, tokens_first

HEADS = (4, 2)
PATTERNS = {
    "window": weft.causal() & weft.window(left=9),
    "dilated": weft.dilated(3, 2, 3),  # lanes
    "documents": weft.documents([13, 1, 16]),  # steps
    "global": weft.longformer(4, 3),  # terms, merged
    "random": weft.random_blocks(8, 2),  # a remainder
    "grid": weft.neighborhood((5, 6), (3, 3)),
    "heads": weft.per_head([weft.causal(), weft.window(3, 3), weft.full(), weft.causal()]),
    "listed": weft.keys(0, 30, 7) | weft.window(2, 0),
    "scattered": weft.documents(ids=[i * 7 % 4 for i in range(30)]),  # terms in another order
    "batch": weft.padding([30, 11]) & weft.causal(),
}


def dense(tensors, mask, function, seeds):
    """{name: tensor}: scores as a matrix, the function on tensors of indices, autograd."""
    q, k, v = (x.detach().double().requires_grad_() for x in tensors)
    (batch, heads, m, d), n = q.shape, k.shape[2]
    group = heads // k.shape[1]
    s = q @ k.repeat_interleave(group, 1).mT * d**-0.5
    where = [
        torch.arange(size).view(*(-1 if i == axis else 1 for i in range(4)))
        for axis, size in enumerate((batch, heads, m, n))
    ]
    torch.set_default_dtype(torch.float64)  # of indices times numbers
    s = function(s, *where).expand(s.shape)
    torch.set_default_dtype(torch.float32)
    live = torch.from_numpy(mask.to_dense(m, n))
    s = s.masked_fill(~live, -torch.inf)
    lse = s.logsumexp(-1)
    empty = (lse == -torch.inf)[..., None]
    p = torch.where(s == -torch.inf, 0.0, torch.exp(s - lse[..., None].masked_fill(empty, 0.0)))
    out = p @ v.repeat_interleave(group, 1)
    loss = (out * seeds[0].double()).sum() + torch.where(empty[..., 0], 0.0, lse * seeds[1].double()).sum()
    return out, lse, loss, (q, k, v)


def compare(tensors, mask, made, score, **options):
    seeds = torch.randn(tensors[0].shape[:3] + tensors[2].shape[3:]), torch.randn(tensors[0].shape[:3])
    out, lse, loss, leaves = dense(tensors, mask, made.function, seeds)
    expected = torch.autograd.grad(loss, (*leaves, *made.tables), allow_unused=True)
    found_out, found_lse = weft.attention(*tensors, mask, score=score, return_lse=True, **options)
    loss = (found_out * seeds[0]).sum() + (found_lse * seeds[1]).masked_fill(found_lse == -torch.inf, 0.0).sum()
    found = torch.autograd.grad(loss, (*tensors, *made.tables), allow_unused=True)
    for pair in ((found_out, out), (found_lse, lse), *zip(found, expected, strict=True)):
        got, wanted = (torch.zeros(1) if x is None else x.double() for x in pair)
        torch.testing.assert_close(got, wanted.expand(got.shape), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_forty_functions(name):
    made = FUNCTIONS[name](At(2, HEADS[0], 30, 30))
    tensors = qkv(30, heads=HEADS, dtype=torch.float64, grad=True)
    mask = weft.full() if name in ("causal", "sliding_window", "documents", "padding") else PATTERNS["window"]
    compare(tensors, mask, made, made.function)


CROSSED = ("relative_table", "type_pairs", "alibi_learned", "sliding_window")


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("name", CROSSED)
def test_indices_are_original_tokens(name, pattern):
    """After steps, lanes, lists, grids, remainders and merged launches; sliding_window masks on top of the pattern."""
    made = FUNCTIONS[name](At(2, HEADS[0], 30, 30))
    compare(qkv(30, heads=HEADS, dtype=torch.float64, grad=True), PATTERNS[pattern], made, made.function)


@pytest.mark.parametrize("name", ["relative_table", "key_bias"])
@pytest.mark.parametrize("sizes", [(17, 30), (30, 17), (1, 9), (64, 65), (129, 63)])
def test_lengths(name, sizes):
    made = FUNCTIONS[name](At(2, HEADS[0], *sizes))
    mask = weft.causal(align="bottom-right") & weft.window(left=20, align="bottom-right")
    compare(qkv(*sizes, heads=HEADS, dtype=torch.float64, grad=True), mask, made, made.function)


@pytest.mark.parametrize("name", ["relative_table", "documents"])
def test_tensors_as_they_lie(name):
    made = FUNCTIONS[name](At(2, HEADS[0], 30, 30))
    tensors = [tokens_first(x) for x in qkv(30, heads=HEADS, dtype=torch.float64, grad=True)]
    compare(tensors, PATTERNS["window"], made, made.function)
    one_row = [x.detach()[:1].expand(2, -1, -1, -1).requires_grad_() for x in qkv(30, heads=HEADS, dtype=torch.float64)]
    compare(one_row, PATTERNS["window"], made, made.function)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_narrow_types(dtype):
    made = FUNCTIONS["relative_table"](At(2, HEADS[0], 30, 30))
    tensors = qkv(30, heads=HEADS, dtype=dtype)
    out, lse = weft.attention(*tensors, PATTERNS["window"], score=made.function, return_lse=True)
    expected = dense(tensors, PATTERNS["window"], made.function, (torch.zeros(1), torch.zeros(1)))
    bound = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(out.double(), expected[0].detach(), rtol=bound, atol=bound)
    torch.testing.assert_close(lse.double(), expected[1].detach(), rtol=1e-5, atol=1e-5)


def test_the_definition_agrees():
    """`weft.acsr.interpret`, with everything that may follow the scale, in their order."""
    made = FUNCTIONS["gated_table"](At(2, HEADS[0], 30, 30))
    tensors = qkv(30, heads=HEADS, dtype=torch.float64, grad=True)
    table, sinks, slopes = (
        torch.randn(4, 7, dtype=torch.float64, requires_grad=True),
        torch.randn(4).double(),
        torch.rand(4),
    )
    score, bias = weft.trace_score(made.function), weft.bias.relative(table)
    seeds = torch.randn_like(tensors[0]), torch.randn(tensors[0].shape[:3])
    options = {"scale": 0.7, "softcap": 3.0, "alibi_slopes": slopes, "dropout": 0.3}
    expected = oracle.attention(
        tensors, PATTERNS["window"], seeds, sinks=sinks, score=score + bias, seed=77, **options
    )  # fmt: skip
    sinks.requires_grad_()
    out, lse = weft.attention(
        *tensors, PATTERNS["window"], score=score, bias=bias, sinks=sinks, seed=77, return_lse=True, **options
    )  # fmt: skip
    loss = (out * seeds[0]).sum() + (lse * seeds[1]).sum()
    grads = torch.autograd.grad(loss, (*tensors, sinks, *score.tables, table))
    names = ("dq", "dk", "dv", "dsinks", "d0", "d1")
    oracle.assert_close({"out": out, "lse": lse, **dict(zip(names, grads, strict=True))}, expected)


def test_rows_that_a_score_masks_have_no_keys():
    q, k, v = qkv(12, heads=HEADS, dtype=torch.float64, grad=True)

    def none_for_some(score, b, h, q, k):
        return torch.where(q % 3 == 0, -float("inf"), score)

    for mask in (weft.causal(), weft.longformer(2, 1), weft.full()):
        out, lse = weft.attention(q, k, v, mask, score=none_for_some, return_lse=True)
        assert (out[:, :, ::3] == 0).all() and (lse[:, :, ::3] == -torch.inf).all()
        assert torch.isfinite(out).all() and torch.isfinite(lse[:, :, 1]).all()
        grads = torch.autograd.grad(out.sum(), (q, k, v))
        assert all(torch.isfinite(x).all() for x in grads) and (grads[0][:, :, ::3] == 0).all()


def test_derivatives_that_are_infinite_at_dead_pairs():
    q, k, v = qkv(12, heads=HEADS, dtype=torch.float64, grad=True)
    rate = torch.rand(4, dtype=torch.float64, requires_grad=True)

    def odd(score, b, h, q, k):  # NaN, and an infinite derivative, where k >= q
        return score + torch.log((q - k) * rate[h])

    out = weft.attention(q, k, v, weft.causal(offset=-1), score=odd)
    grads = torch.autograd.grad(out.square().sum(), (q, k, v, rate))
    assert all(torch.isfinite(x).all() for x in (out, *grads))


def test_a_scalar_and_what_the_caller_computes():
    """A table may be computed from learned tensors outside the function or in it."""
    base = torch.rand(4, dtype=torch.float64, requires_grad=True)
    q, k, v = qkv(12, heads=HEADS, dtype=torch.float64)
    inside = weft.attention(q, k, v, weft.causal(), score=lambda score, b, h, q, k: score - base.exp()[h] * (q - k))
    slopes = base.exp()
    outside = weft.attention(q, k, v, weft.causal(), score=lambda score, b, h, q, k: score - slopes[h] * (q - k))
    grads = [torch.autograd.grad(x.square().sum(), base)[0] for x in (inside, outside)]
    torch.testing.assert_close(*grads, rtol=0, atol=0)
    with torch.no_grad():
        base.add_(1)
    changed = weft.attention(q, k, v, weft.causal(), score=lambda score, b, h, q, k: score - base.exp()[h] * (q - k))
    assert not torch.equal(changed, inside)


def test_an_index_after_the_other():
    table = torch.rand(4, 23)
    one = weft.trace_score(lambda score, b, h, q, k: score + table[h][q - k + 11])
    both = weft.trace_score(lambda score, b, h, q, k: score + table[h, q - k + 11])
    last = weft.trace_score(lambda score, b, h, q, k: score + table[-1, q - k + 11])
    assert one.text == both.text == "score + real0[h, q - k + 11]"
    assert last.text == "score + real0[3, q - k + 11]"


def test_arrays_of_numpy():
    ids = np.array([0, 0, 1, 1, 2, 2])
    q, k, v = qkv(6, heads=HEADS, dtype=torch.float64)
    found = weft.attention(
        q, k, v, weft.full(), score=lambda score, b, h, q, k: torch.where(ids[q] == ids[k], score, -np.inf)
    )
    torch.testing.assert_close(found, weft.attention(q, k, v, weft.documents([2, 2, 2])))


def test_a_traced_score_is_text():
    slopes = torch.rand(4)
    score = weft.trace_score(lambda score, b, h, q, k: score - slopes[h] * abs(q - k))
    assert score.text == "score - real0[h] * real(abs(q - k))"
    assert score.tables == (slopes,)


# ---- what is refused -------------------------------------------------------------------------------------------------
COUNT = [0]
LENGTHS = torch.tensor([3, 9])
TABLE = torch.rand(4, 6)


def counts(score, b, h, q, k):
    global REACHED  # noqa: PLW0603 - what is refused
    REACHED = True
    return score


def changes_score(score, b, h, q, k):
    score += 1
    return score


def changes_table(score, b, h, q, k):
    LENGTHS.add_(1)
    return score


def prints(score, b, h, q, k):
    print("score")
    return score


def as_text(score, b, h, q, k):
    return score + len(f"{score}")


def branches(score, b, h, q, k):
    return score if q > k else -score


REFUSED = {
    counts: "it changes `REACHED`",
    changes_score: r"it changes its argument score, in changes_score, line \d+ \(`score \+= 1`\)",
    changes_table: "it changes a tensor that it captured",
    prints: "it prints",
    as_text: "its value as text",
    branches: r"in branches, line \d+ \(`return score if q > k else -score`\), at a branch on its value",
    lambda score, b, h, q, k: score + TABLE[q, k]: r"\(4, 6\) is read beyond its end: axis 0 has 4 entries",
    lambda score, b, h, q, k: score + TABLE[h, k]: r"axis 1 has 6 entries, read from 0 to 11",
    lambda score, b, h, q, k: TABLE[h]: r"\(6,\) entries of a table|its result, an array of shape",
    lambda score, b, h, q, k: TABLE: r"an array of shape \(4, 6\)",
    lambda score, b, h, q, k: (score, score): "its result, a tuple",
    lambda score, b, h, q, k: None: "its result, a NoneType",
    lambda score, b, h, q, k: q >= k: "its result, a condition: pass it as mask",
    lambda score, b, h, q, k: score + torch.atan(score): "`atan`",
    lambda score, b, h, q, k: score + q // k: "a division of indices by what is not a constant",
    lambda score, b, h, q, k: score + TABLE[:, q]: "by a slice",
    lambda score, b, h, q, k: score + TABLE[h, score]: "by a real number",
    lambda score, b, h, q, k: score.to(torch.bfloat16): "would take digits off",
    lambda score, b, h, q, k: score.item(): "its value as a plain number",
    lambda score, q, k: score: "it does not take score, b, h, q, k",
    lambda score, b, h, q, k: score / (1 / 0): "ZeroDivisionError",
}  # fmt: skip


@pytest.mark.parametrize("function", REFUSED)
def test_refusals(function):
    q, k, v = qkv(12, heads=HEADS)
    with pytest.raises(OptionError, match=REFUSED[function]) as caught:
        weft.attention(q, k, v, weft.causal(), score=function)
    assert caught.value.wrong and caught.value.cure and len(str(caught.value).splitlines()) == 3


def test_reads_beyond_the_end_at_dead_pairs_are_none():
    q, k, v = qkv(12, heads=HEADS)
    table = torch.rand(4, 12)
    weft.attention(q, k, v, weft.causal(), score=lambda score, b, h, q, k: score + table[h, q - k])
    with pytest.raises(OptionError, match="read from -11 to"):
        weft.attention(q, k, v, weft.full(), score=lambda score, b, h, q, k: score + table[h, q - k])


def test_no_function():
    q, k, v = qkv(12, heads=HEADS)
    with pytest.raises(OptionError, match="it is no function"):
        weft.attention(q, k, v, weft.causal(), score=1.0)
    mask = weft.causal()
    inside = torch.compile(
        lambda q: weft.attention(q, k, v, mask, score=lambda score, b, h, q, k: score), backend="eager", fullgraph=True
    )
    with pytest.raises(Exception, match=as_dynamo_says("write score = weft")):
        inside(q)


def test_extra_keys_have_no_index():
    q, k, v = qkv(12, heads=HEADS)
    with pytest.raises(UnsupportedError, match="extra keys have no index"):
        weft.attention(q, k, v, weft.causal(), score=lambda score, b, h, q, k: score, extra_keys=k, extra_values=v)
