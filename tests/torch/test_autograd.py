"""Reverse-mode gradients: right, for whatever subset is asked, and with torch's own rules kept."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tests.tiers import every

import weft
from weft.testing.cases import CASES, At

from .helpers import qkv, tokens_first

SMALL = (
    *("window", "causal_strict", "dilated", "modular", "strided", "fixed_summary", "documents_scattered"),
    *("padding_rows", "global_rows", "random_blocks", "neighborhood_2d_causal", "segments", "per_head"),
)
SLOPES = torch.tensor([0.5, 0.25, 0.1, 0.0], dtype=torch.float64)


def finite(out, lse):
    """Rows without keys have lse -inf, which finite differences cannot take."""
    return out, torch.where(lse.isfinite(), lse, 0.0)


def gradcheck(function, inputs):
    return torch.autograd.gradcheck(function, inputs, nondet_tol=0.0)


@pytest.mark.parametrize("name", every(4, SMALL))
def test_gradcheck_of_out_and_lse(name):
    pattern = CASES[name].make(At(6, 6))
    inputs = qkv(6, heads=(4, 1), dims=(2, 1), dtype=torch.float64, grad=True)
    assert gradcheck(lambda q, k, v: finite(*weft.attention(q, k, v, pattern, return_lse=True)), inputs)


@pytest.mark.parametrize("alignment", ["top-left", "bottom-right"])
@pytest.mark.parametrize(
    "options", [{}, {"softcap": 1.1}, {"alibi_slopes": SLOPES}, {"scale": -0.4, "softcap": 2.0}], ids=str
)
def test_gradcheck_of_options(options, alignment):
    pattern = weft.causal(align=alignment) & weft.window(left=3, align=alignment)
    inputs = qkv(4, 6, batch=1, dims=(2, 3), dtype=torch.float64, grad=True)
    sinks = torch.tensor([0.3, -1.0, 2.0, 0.0], dtype=torch.float64, requires_grad=True)

    def attend(q, k, v, sinks):
        return finite(*weft.attention(q, k, v, pattern, sinks=sinks, return_lse=True, **options))

    assert gradcheck(attend, (*inputs, sinks))


@pytest.mark.parametrize("heads", [(1, 1), (3, 1), (6, 2)], ids=str)
def test_gradcheck_of_grouped_heads(heads):
    inputs = qkv(5, batch=1, heads=heads, dims=(2, 3), dtype=torch.float64, grad=True)
    assert gradcheck(lambda q, k, v: weft.attention(q, k, v, weft.longformer(2, global_tokens=1)), inputs)


def test_a_sink_in_a_row_without_keys():
    """out 0 there, lse the sink: its derivative by the sink is 1."""
    q, k, v = qkv(5, dtype=torch.float64)
    sinks = torch.tensor([1.0, 2.0, -3.0, 0.5], dtype=torch.float64, requires_grad=True)
    out, lse = weft.attention(q, k, v, weft.nothing(), sinks=sinks, return_lse=True)
    assert (out == 0).all()
    assert torch.equal(lse, sinks.detach()[None, :, None].expand(2, 4, 5))
    (found,) = torch.autograd.grad(lse.sum(), sinks)
    assert torch.equal(found, torch.full((4,), 10.0, dtype=torch.float64))  # 2 batch rows of 5 queries


@pytest.mark.parametrize("wanted", ["q", "k", "v", "sinks", "qv", "k sinks"])
def test_only_what_is_wanted(wanted):
    """Gradients of some inputs are those of all; the others get none."""
    names = ("q", "k", "v", "sinks")
    values = [*qkv(20), torch.randn(4)]
    pattern = weft.strided(5) & weft.padding([20, 13])

    def gradients(asked):
        leaves = [x.clone().requires_grad_(name in asked) for name, x in zip(names, values, strict=True)]
        out, lse = weft.attention(*leaves[:3], pattern, sinks=leaves[3], return_lse=True)
        (out.square().sum() + lse.sum()).backward()
        return [x.grad for x in leaves]

    for name, some, whole in zip(names, gradients(wanted), gradients(names), strict=True):
        assert (some is not None) == (name in wanted), name
        assert some is None or torch.equal(some, whole), name


@pytest.mark.parametrize("which", ["out", "lse", "neither"])
def test_gradients_from_one_output(which):
    q, k, v = qkv(20, grad=True)
    out, lse = weft.attention(q, k, v, weft.window(left=4), return_lse=True)
    weights = {"out": (1.0, 0.0), "lse": (0.0, 1.0), "neither": (0.0, 0.0)}[which]
    both = torch.autograd.grad((weights[0] * out).sum() + (weights[1] * lse).sum(), (q, k, v), retain_graph=True)
    if which == "neither":
        assert all((x == 0).all() for x in both)
        return
    one = torch.autograd.grad((out if which == "out" else lse).sum(), (q, k, v), allow_unused=True)
    for x, y in zip(one, both, strict=True):
        assert torch.equal(torch.zeros_like(y) if x is None else x, y)


@pytest.mark.parametrize("layout", ["expanded", "tokens_first", "dims_first", "every_other"])
def test_any_strides_of_the_incoming_gradient(layout):
    q, k, v = qkv(33, dtype=torch.float64, grad=True)
    out, lse = weft.attention(q, k, v, weft.causal(), return_lse=True)
    seeds = [torch.randn(out.shape).double(), torch.randn(lse.shape).double()]
    if layout == "expanded":  # what sum() and mean() send
        laid = [torch.full((), 0.25, dtype=torch.float64).expand(x.shape) for x in seeds]
        seeds = [x.clone() for x in laid]
    elif layout == "every_other":
        laid = [torch.stack([x, torch.full_like(x, torch.nan)], -1)[..., 0] for x in seeds]
    elif layout == "tokens_first":
        laid = [tokens_first(seeds[0]), seeds[1].mT.contiguous().mT]
    else:
        laid = [x.mT.contiguous().mT for x in seeds]
    assert all(x.stride() != y.stride() for x, y in zip(seeds, laid, strict=True))
    first, second = (torch.autograd.grad((out, lse), (q, k, v), x, retain_graph=True) for x in (seeds, laid))
    for x, y in zip(first, second, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-13)


def test_gradients_reach_the_tensor_behind_the_views():
    """Projections split into heads, and one tensor used as q, k and v."""
    joint = torch.randn(2, 12, 3, 4, 8, dtype=torch.float64, requires_grad=True)
    same = torch.randn(2, 4, 12, 8, dtype=torch.float64, requires_grad=True)
    pattern = weft.chunks(5)
    q, k, v = joint.permute(2, 0, 3, 1, 4)
    weft.attention(q, k, v, pattern).square().sum().backward()
    apart = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    weft.attention(*apart, pattern).square().sum().backward()
    for i, x in enumerate(apart):
        torch.testing.assert_close(joint.grad[:, :, i].transpose(1, 2), x.grad, rtol=0, atol=1e-14)

    weft.attention(same, same, same, pattern).square().sum().backward()
    apart = [same.detach().clone().requires_grad_() for _ in range(3)]
    weft.attention(*apart, pattern).square().sum().backward()
    torch.testing.assert_close(same.grad, sum(x.grad for x in apart), rtol=0, atol=1e-14)


def test_heads_expanded_by_the_user_are_grouped_heads():
    q, k, v = qkv(20, dtype=torch.float64, grad=True)
    grouped = torch.autograd.grad(weft.attention(q, k, v, weft.causal()).square().sum(), (q, k, v))
    wide = [x[:, :, None].expand(-1, -1, 2, -1, -1).flatten(1, 2) for x in (k, v)]
    expanded = torch.autograd.grad(weft.attention(q, *wide, weft.causal()).square().sum(), (q, k, v))
    for x, y in zip(grouped, expanded, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-13)


def test_a_graph_may_be_walked_twice_and_adds_up():
    q, k, v = qkv(20, grad=True)
    total = weft.attention(q, k, v, weft.causal()).sum()
    total.backward(retain_graph=True)
    once = [x.grad.clone() for x in (q, k, v)]
    total.backward()
    for x, y in zip((q, k, v), once, strict=True):
        assert torch.equal(x.grad, 2 * y)


def test_a_saved_tensor_that_changed_is_noticed():
    """torch counts versions of what is saved; a backward from overwritten inputs or outputs would be silently wrong."""
    for changed in range(4):
        q, k, v = (x * 1.0 for x in qkv(20, grad=True))
        out = weft.attention(q, k, v, weft.causal())
        with torch.no_grad():
            (q, k, v, out)[changed].mul_(2.0)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()


def test_create_graph_alone_is_allowed():
    q, k, v = qkv(20, grad=True)
    (found,) = torch.autograd.grad(weft.attention(q, k, v, weft.causal()).sum(), q, create_graph=True)
    (plain,) = torch.autograd.grad(weft.attention(q, k, v, weft.causal()).sum(), q)
    assert torch.equal(found.detach(), plain)


def test_inputs_are_left_alone():
    values = [*qkv(40), torch.randn(4)]
    before = [x.clone() for x in values]
    leaves = [x.requires_grad_() for x in values]
    out = weft.attention(*leaves[:3], weft.bigbird(block=8), sinks=leaves[3], softcap=2.0, alibi_slopes=SLOPES.float())
    seed = torch.randn_like(out)
    kept = seed.clone()
    torch.autograd.grad(out, leaves, seed)
    assert torch.equal(seed, kept)
    for x, y in zip(leaves, before, strict=True):
        assert torch.equal(x, y)


def test_several_threads_at_once():
    """Nothing that a call writes is shared with another call."""
    patterns = [weft.window(left=9), weft.strided(7), weft.bigbird(block=16), weft.causal()] * 4

    def work(number):
        q, k, v = qkv(150, grad=True, seed=number)
        out, lse = weft.attention(q, k, v, patterns[number], return_lse=True)
        return out.detach(), lse.detach(), *torch.autograd.grad(out.sum() + lse.sum(), (q, k, v))

    alone = [work(number) for number in range(len(patterns))]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(work, range(len(patterns))))
    for some, others in zip(alone, together, strict=True):
        for x, y in zip(some, others, strict=True):
            assert torch.equal(x, y)
