"""Other layouts by strides: the numbers of the float64 definition, results in the layout that came, and no copies."""

import io
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from tests.tiers import every
from torch._dynamo.testing import CompileCounter

import weft
from weft.errors import AlignmentError, InputError, LengthError, OptionError, WeftError
from weft.testing.cases import BATCH, CASES, HEADS, At, grid
from weft.testing.refusals import refuse
from weft.torch import SparseAttention, call, layouts

from . import oracle
from .helpers import qkv

M = 30  # 5 x 6
OPTIONS = {
    "none": {},
    "scale": {"scale": 0.3},
    "softcap": {"softcap": 2.0},
    "sinks": {"sinks": torch.linspace(-1, 1, HEADS, dtype=torch.float64)},
    "slopes": {"alibi_slopes": torch.linspace(0.1, 0.4, HEADS, dtype=torch.float64)},
}


def laid_out(x, layout, shape=None):
    """x (B, H, S, D) in a layout, contiguous there; shape: the grid of its tokens."""
    x = x.detach()
    if shape is not None:
        x = x.unflatten(2, shape)
    if layout == "bhsd":
        return x.contiguous()
    x = x.movedim(1, -2).contiguous()
    return x[0] if layout == "thd" else x


def back(x, layout, axes=1):
    """out or lse of a layout as (B, H, S, D) or (B, H, S); axes: how many of them are tokens."""
    x = x[None] if layout == "thd" else x
    if layout == "bhsd":
        return x.flatten(2, 1 + axes)
    x = x.flatten(1, axes)
    return x.transpose(1, 2)


def results(tensors, layout, mask, options, shape=None):
    """{name: tensor (B, H, S, ...)} of weft's results in a layout, and how they lay there."""
    leaves = [laid_out(x, layout, shape).requires_grad_() for x in tensors]
    sinks = options.get("sinks")
    if sinks is not None:
        options = options | {"sinks": sinks.clone().requires_grad_()}
    out, lse = weft.attention(*leaves, mask, layout=layout, return_lse=True, **options)
    assert out.shape[:-1] == lse.shape == leaves[0].shape[:-1]
    assert out.is_contiguous()
    seeds = seeds_of(tensors)
    wanted = [*leaves, *([] if sinks is None else [options["sinks"]])]
    given = laid_out(seeds[0], layout, shape), laid_out(seeds[1][..., None], layout, shape)[..., 0]
    found = torch.autograd.grad((out, lse), wanted, given)
    axes = 1 if shape is None else len(shape)
    names = ("out", "lse", "dq", "dk", "dv")
    both = {name: back(x, layout, axes) for name, x in zip(names, (out, lse, *found), strict=False)}
    return both | ({} if sinks is None else {"dsinks": found[3]})


def seeds_of(tensors):
    q, _, v = tensors
    random = torch.Generator().manual_seed(7)
    return [torch.randn(*q.shape[:3], *last, generator=random, dtype=torch.float64) for last in ((v.shape[3],), ())]


def problems():
    """(case, option, layout): a pattern that tells batch rows apart has no packed form, slopes none on a grid."""
    for layout in ("bshd", "thd"):
        for name, case in CASES.items():
            if layout == "thd" and case.make(At(M, M)).extent()[0] is not None:
                continue
            yield from ((name, option, layout) for option in OPTIONS if option != "slopes" or not case.grid)


@pytest.mark.parametrize(("name", "option", "layout"), every(20, problems()))
def test_every_pattern_with_every_option(name, option, layout):
    mask = CASES[name].make(At(M, M))
    batch = 1 if layout == "thd" else BATCH
    tensors = qkv(M, batch=batch, heads=(HEADS, 2), dims=(4, 3), dtype=torch.float64)
    expected = oracle.attention(tensors, mask, seeds_of(tensors), **OPTIONS[option])
    oracle.assert_close(results(tensors, layout, mask, OPTIONS[option]), expected)


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("option", ["none", "softcap", "sinks"])
@pytest.mark.parametrize("name", every(4, ["neighborhood_2d", "neighborhood_2d_causal", "neighborhood_3d", "product"]))
def test_grids_as_they_come(name, option, layout):
    shape = grid(M, 3 if name.endswith("3d") else 2)
    mask = CASES[name].make(At(M, M))
    tensors = qkv(M, heads=(4, 2), dims=(4, 3), dtype=torch.float64)
    expected = oracle.attention(tensors, mask, seeds_of(tensors), **OPTIONS[option])
    oracle.assert_close(results(tensors, layout, mask, OPTIONS[option], shape), expected)


def test_a_grid_of_queries_and_another_of_keys():
    mask = weft.product([weft.window(1, 0, align="top-left"), weft.full()], (4, 3), key_shape=(5, 2))
    tensors = [laid_out(x, "bshd", shape) for x, shape in zip(qkv(12, 10), ((4, 3), (5, 2), (5, 2)), strict=True)]
    out = weft.attention(*tensors, mask, layout="bshd")
    assert out.shape == (2, 4, 3, 4, 8)
    torch.testing.assert_close(back(out, "bshd", 2), weft.attention(*qkv(12, 10), mask))


def test_lengths_of_queries_and_keys_apart():
    mask, tensors = weft.causal(align="bottom-right"), qkv(5, 9)
    expected = weft.attention(*tensors, mask)
    found = weft.attention(*(laid_out(x, "bshd") for x in tensors), mask, layout="bshd")
    assert torch.equal(back(found, "bshd"), expected)


@pytest.mark.parametrize(("layout", "shape"), [("bshd", None), ("thd", None), ("bshd", (5, 6)), ("bhsd", (5, 6))])
def test_nothing_is_copied(layout, shape):
    """What the kernels are given lies where the caller's tensors lie, and what comes back where they wrote."""
    seen = []

    def attend(tensors, *rest):
        found = call.attend(tensors, *rest)
        seen.append(([x.data_ptr() for x in tensors], [x.data_ptr() for x in found]))
        return found

    mask = weft.neighborhood(shape, 3) if shape else weft.window(3, 0)
    tensors = [laid_out(x, layout, shape) for x in qkv(M, batch=1 if layout == "thd" else 2)]
    with mock.patch("weft.torch.translate.attend", attend):
        found = weft.attention(*tensors, mask, layout=layout, return_lse=True)
    assert seen == [([x.data_ptr() for x in tensors], [x.data_ptr() for x in found])]


def test_slices_of_one_projection():
    """q, k and v as views of one tensor (B, S, 3, H, D), which are not contiguous."""
    packed = torch.randn(2, M, 3, 4, 8)
    q, k, v = packed.unbind(2)
    mask = weft.causal()
    found = weft.attention(q, k, v, mask, layout="bshd")
    assert found.is_contiguous()
    expected = weft.attention(*(x.transpose(1, 2).contiguous() for x in (q, k, v)), mask)
    torch.testing.assert_close(found, expected.transpose(1, 2))


def test_a_slice_of_a_grid():
    """Rows of a larger image: the grid's axes follow each other with a gap, which no stride spans."""
    mask = weft.neighborhood((5, 6), 3)
    tensors = [torch.randn(2, 5, 9, 2, 8)[:, :, :6] for _ in range(3)]
    refuse(
        lambda: weft.attention(*tensors, mask, layout="bshd"), InputError,
        ("axes 1 and 2 of q", "(2, 5, 6, 2, 8)", "q.contiguous()", "copies"),
    )  # fmt: skip
    rows = [torch.randn(2, 8, 6, 2, 8)[:, 1:6] for _ in range(3)]  # whole rows lie next to each other
    found = weft.attention(*rows, mask, layout="bshd")
    expected = weft.attention(*(x.contiguous() for x in rows), mask, layout="bshd")
    assert torch.equal(found, expected)


def test_axes_of_one_token_collapse_whatever_their_stride():
    mask = weft.product([weft.full(), weft.window(2, 0)], (1, 6))
    tensors = [torch.randn(2, 4, 6, 2, 8)[:, ::4] for _ in range(3)]
    assert weft.attention(*tensors, mask, layout="bshd").shape == (2, 1, 6, 2, 8)


@pytest.mark.parametrize("m", [0, 1])
def test_hardly_any_tokens(m):
    x = qkv(m, heads=(4, 2))
    assert weft.attention(*(laid_out(t, "bshd") for t in x), weft.causal(), layout="bshd").shape == (2, m, 4, 8)
    y = qkv(m, batch=1)
    assert weft.attention(*(laid_out(t, "thd") for t in y), weft.causal(), layout="thd").shape == (m, 4, 8)


def test_without_lse():
    x = [laid_out(t, "bshd") for t in qkv(9)]
    assert torch.equal(
        weft.attention(*x, weft.causal(), layout="bshd"),
        weft.attention(*x, weft.causal(), layout="bshd", return_lse=True)[0],
    )


# ---- compiled, modules, plans ----------------------------------------------------------------------------------------
GRID = weft.neighborhood((5, 6), 3)
COMPILED = {
    "bshd": (weft.causal() & weft.window(4), "bshd", None),
    "thd": (weft.documents([10, 20]), "thd", None),
    "grid": (GRID, "bshd", (5, 6)),
    "grid of heads first": (GRID, "bhsd", (5, 6)),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", every(6, COMPILED))
def test_compiled(name, dynamic):
    mask, layout, shape = COMPILED[name]
    torch._dynamo.reset()

    def function(q, k, v, mask):
        out, lse = weft.attention(q, k, v, mask, layout=layout, return_lse=True)
        return out.sin(), lse

    compiled = torch.compile(function, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    tensors = qkv(M, batch=1 if layout == "thd" else 2)
    found = []
    for one in (compiled, function):
        leaves = [laid_out(x, layout, shape).requires_grad_() for x in tensors]
        out, lse = one(*leaves, mask)
        found.append([out, lse, *torch.autograd.grad(out.sum() + lse.sum(), leaves)])
        assert out.stride() == leaves[0].stride()
    for got, expected in zip(*found, strict=True):
        torch.testing.assert_close(got, expected)


def test_a_grid_that_is_not_the_pattern_s_is_refused_compiled_too():
    torch._dynamo.reset()
    compiled = torch.compile(lambda q, k, v, mask: weft.attention(q, k, v, mask, layout="bshd"), backend="eager",
                             fullgraph=True, dynamic=True)  # fmt: skip
    good, bad = ([laid_out(x, "bshd", shape) for x in qkv(M)] for shape in ((5, 6), (6, 5)))
    assert torch.equal(compiled(*good, GRID), weft.attention(*good, GRID, layout="bshd"))
    with pytest.raises(LengthError, match="5 x 6"):
        compiled(*bad, GRID)


def test_a_grid_under_torch_compile_makes_one_graph_for_all_sizes():
    torch._dynamo.reset()
    counter = CompileCounter()
    compiled = torch.compile(lambda q, k, v, mask: weft.attention(q, k, v, mask, layout="bshd"), backend=counter,
                             fullgraph=True, dynamic=True)  # fmt: skip
    for shape in ((5, 6), (7, 4), (9, 3)):
        x = [laid_out(t, "bshd", shape) for t in qkv(shape[0] * shape[1])]
        mask = weft.neighborhood(shape, 3)
        assert torch.equal(compiled(*x, mask), weft.attention(*x, mask, layout="bshd"))
    assert counter.frame_count == 1


def test_the_module_takes_a_layout():
    x = [laid_out(t, "bshd") for t in qkv(9)]
    module = SparseAttention(weft.causal(), layout="bshd", scale=0.5)
    assert torch.equal(module(*x), weft.attention(*x, weft.causal(), layout="bshd", scale=0.5))
    assert "layout='bshd'" in repr(module) or "layout=bshd" in repr(module)
    refuse(lambda: SparseAttention(weft.causal(), layout="sbhd"), OptionError, ("layout='sbhd'", "bshd"))


class OnGrid(torch.nn.Module):
    def forward(self, q, k, v):
        return weft.attention(q, k, v, GRID, layout="bshd")


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", every(3, ["bshd", "thd", "grid"]))
def test_exported(name, strict):
    """With save and load; torch.export reads strides, and keeps what they say."""
    modules = {"bshd": SparseAttention(weft.causal(), layout="bshd"),
               "thd": SparseAttention(weft.causal(), layout="thd"), "grid": OnGrid()}  # fmt: skip
    layout, shape = ("bshd", (5, 6)) if name == "grid" else (name, None)
    x = tuple(laid_out(t, layout, shape) for t in qkv(M, batch=1 if name == "thd" else 2))
    file = io.BytesIO()
    torch.export.save(torch.export.export(modules[name], x, strict=strict), file)
    file.seek(0)
    assert torch.equal(torch.export.load(file).module()(*x), modules[name](*x))


def test_a_compiled_module_of_a_layout():
    torch._dynamo.reset()
    module = SparseAttention(weft.causal(), layout="bshd", return_lse=True)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    x = [laid_out(t, "bshd") for t in qkv(M)]
    for got, expected in zip(compiled(*x), module(*x), strict=True):
        torch.testing.assert_close(got, expected)


def test_plans_of_a_layout():
    x = [laid_out(t, "bshd") for t in qkv(9, 12)]
    plan = weft.plan(weft.causal(align="top-left"), *x, layout="bshd")
    assert (plan.problem.m, plan.problem.n, plan.problem.q_heads) == (9, 12, 4)
    plan.verify()
    assert "M=9" in weft.explain(weft.causal(align="top-left"), *x, layout="bshd")


# ---- refused ---------------------------------------------------------------------------------------------------------
def attend(tensors, mask=None, **options):
    return lambda: weft.attention(*tensors, weft.causal() if mask is None else mask, **options)


def test_no_such_layout():
    for layout in ("sbhd", "BSHD", None, 4):
        refuse(attend(qkv(9), layout=layout), OptionError, (f"layout={layout!r}", "'bshd'"))


@pytest.mark.parametrize(
    ("layout", "shapes", "said"),
    [
        ("bshd", ((2, 9, 4), (2, 9, 2, 8)), "q has 3 dimensions"),
        ("thd", ((2, 9, 4, 8), (2, 9, 4, 8)), "q has 4 dimensions"),
        ("bshd", ((2, 3, 3, 4, 8), (2, 9, 2, 8)), "q has 2 axes of tokens, k has 1"),
        ("bshd", ((2, 3, 3, 3, 3, 4, 8),) * 2, "q has 7 dimensions"),
        ("bshd", ((2, 9, 4, 8), (2, 9, 3, 8)), "4 query heads"),
    ],
)
def test_shapes(layout, shapes, said):
    q, k = (torch.zeros(shape) for shape in shapes)
    refuse(attend((q, k, k), layout=layout), InputError, (said,))


def test_nested_tensors():
    nested = torch.nested.nested_tensor([torch.zeros(9, 2, 8)])
    refuse(attend([nested] * 3, layout="bshd"), InputError, ("nested",))


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_another_grid(layout):
    x = [laid_out(t, layout, (6, 5)) for t in qkv(M)]
    for _ in range(2):
        refuse(attend(x, GRID, layout=layout), LengthError, ("6 x 5", "5 x 6", "shape=(6, 5)"))
        good = [laid_out(t, layout, (5, 6)) for t in qkv(M)]
        assert weft.attention(*good, GRID, layout=layout).shape == good[0].shape
    refuse(attend(x, weft.causal(), layout=layout), InputError, ("no grid", "q.flatten(1, -3)", "neighborhood"))


SINKS = torch.zeros(8)
WRONG = {  # name -> what fails next, once tokens and heads are exchanged
    "documents": (weft.documents([40, 24]), {}, LengthError),
    "sinks": (weft.causal(), {"sinks": SINKS}, OptionError),
    "slopes": (weft.causal(), {"alibi_slopes": SINKS}, OptionError),
    "heads": (weft.per_head([weft.causal()] * 8), {}, InputError),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_layout_that_is_surely_wrong_is_said_by_what_fails_next(name):
    mask, options, error = WRONG[name]
    x = [torch.randn(2, 64, 8, 16) for _ in range(3)]  # (B, S, H, D)
    refuse(attend(x, mask, **options), error, ("(2, 64, 8, 16)", "64 heads of 8 tokens", 'layout="bshd"'))
    assert weft.attention(*x, mask, layout="bshd", **options).shape == x[0].shape
    y = [t.transpose(1, 2) for t in x]
    refuse(attend(y, mask, layout="bshd", **options), error, ("64 heads of 8 tokens", 'layout="bhsd"'))
    z = [t[0] for t in y]
    refuse(attend(z, mask, layout="thd", **options), error, ("64 heads of 8 tokens", "q[None]"))


def test_no_hint_where_the_layout_may_be_right():
    """A step of decoding has more heads than queries, and fewer than keys."""
    x = qkv(1, 64, heads=(8, 8))
    with pytest.raises(AlignmentError) as raised:
        weft.attention(*x, weft.causal())
    assert "layout" not in str(raised.value)


def test_the_hint_is_told_once():
    x = [torch.randn(2, 64, 8, 16) for _ in range(3)]
    for _ in range(2):
        with pytest.raises(WeftError) as raised:
            weft.attention(*x, weft.documents([40, 24]))
        assert str(raised.value).count("layout=") == 1


def test_patterns_whose_grid_was_compared_are_few():
    with mock.patch.object(layouts._compared, "most", 4), mock.patch.dict(layouts._compared, clear=True):
        for left in range(9):
            mask = weft.product([weft.window(left), weft.full()], (5, 6))
            weft.attention(*(laid_out(t, "bshd", (5, 6)) for t in qkv(M)), mask, layout="bshd")
            assert len(layouts._compared) <= 4


def test_other_tensors_than_torch_s():
    call = SimpleNamespace(dim=lambda: 4)
    refuse(attend([call] * 3, layout="bshd"), InputError, ("q is SimpleNamespace",))
