"""Masks as callers hold them: recognised once, found again while they are the same, and anew when they are not."""

import gc
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import pytest
import torch
from tests.tiers import every

import weft
from weft.errors import InputError, UnsupportedError, WeftError
from weft.testing.cases import BATCH, CASES, HEADS, At
from weft.testing.refusals import refuse
from weft.torch import SparseAttention, mask_cache, masks
from weft.torch.fingerprint import fingerprint

from .helpers import as_dynamo_says, qkv
from .mask_calls import M, X, block_mask, dense, held, live_of, near, same_document, triangle, windowed


@pytest.fixture(autouse=True)
def nothing_known():
    masks.forget()
    yield
    masks.forget()


# ---- tensors ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", every(4, CASES))
def test_a_tensor_of_every_pattern(name):
    live = torch.from_numpy(CASES[name].make(At(M, M)).to_dense(M))
    assert held(live, live) == 1


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_in_other_layouts(layout):
    live = triangle()
    x = [t.transpose(1, 2) for t in X] if layout == "bshd" else X
    found = weft.attention(*x, live, layout=layout)
    torch.testing.assert_close(found.transpose(1, 2) if layout == "bshd" else found, dense(live))


@pytest.mark.parametrize("shape", [(1, M, M), (HEADS, M, M), (1, 1, M, M), (BATCH, 1, M, M), (1, HEADS, M, M)])
def test_axes_of_a_tensor(shape):
    live = torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.5
    live[..., 0] = True
    assert held(live, live) == 1


def test_lengths_of_queries_and_keys_apart():
    x, live = qkv(5, 9), triangle(5, 9)
    torch.testing.assert_close(weft.attention(*x, live), dense(live, x))


def test_changed_in_place():
    live = triangle()
    assert held(live, live) == 1
    live[3] = True
    assert held(live, live) == 1
    live.t()[:, 0].fill_(False)  # through a view
    assert held(live, live) == 1
    live[0, 0] = live[0, 0].item()  # the same again, in another version
    assert held(live, live) == 1


def test_freed_and_another_at_its_address():
    """One memory for all of them; Python gives the same place to some."""
    buffer, places = bytearray(M * M), set()
    for diagonal in (0, -1, -2, -3, 1, 2) * 3:
        expected = torch.ones(M, M, dtype=torch.bool).tril(diagonal)
        buffer[:] = expected.numpy().tobytes()
        live = torch.frombuffer(buffer, dtype=torch.bool).view(M, M)
        places.add((id(live), live.data_ptr(), live._version))
        torch.testing.assert_close(weft.attention(*X, live), dense(expected))
        del live
        gc.collect()
    assert len(places) < 18, "no place came back: this tests nothing"


def test_what_is_freed_is_forgotten():
    live = triangle()
    weft.attention(*X, live)
    assert len(masks._recognized) == 1
    del live
    gc.collect()
    assert not masks._recognized


def test_another_view_of_the_same_memory():
    """The same numbers otherwise strided, and another part of them."""
    square = torch.rand(2 * M, M, generator=torch.Generator().manual_seed(2)) < 0.5
    square[:, 0] = True
    for live in (square[:M], square[M:], square[::2], square[:M].t() | torch.eye(M, dtype=torch.bool)):
        assert held(live, live) == 1


def test_its_data_replaced():
    live = triangle()
    assert held(live, live) == 1
    live.data = torch.ones(M, M, dtype=torch.bool)
    assert held(live, live) == 1


def test_inference_mode():
    """A tensor made there has no version: its content is looked at each time, and explain says so."""
    with torch.inference_mode():
        live = triangle()
        assert live.is_inference()
        assert held(live, live) == 1
        assert held(live.clone(), live) == 0  # the same content
        live[3] = True
        assert held(live, live) == 1
        assert "hash of its content at each call" in weft.explain(live, *X)
        outside = torch.ones(M, M, dtype=torch.bool)
    with torch.inference_mode(False):
        ordinary = triangle()
    with torch.inference_mode():
        assert held(ordinary, triangle()) == 1
        assert "same versions" in weft.explain(ordinary, *X)
    assert held(outside, outside) == 1


def test_gradients_and_options():
    leaves = [t.clone().requires_grad_() for t in X]
    out, lse = weft.attention(*leaves, triangle(), return_lse=True, softcap=2.0)
    expected = [t.clone().requires_grad_() for t in X]
    other, other_lse = weft.attention(*expected, weft.causal(), return_lse=True, softcap=2.0)
    found = (
        torch.autograd.grad(out.sum() + lse.sum(), leaves),
        torch.autograd.grad(other.sum() + other_lse.sum(), expected),
    )
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (torch.ones(BATCH, M, dtype=torch.bool), ("(B, N)", "weft.padding(mask=mask)")),
        (torch.ones(BATCH, 1, 1, M, dtype=torch.bool), ("(B, 1, 1, N)", "weft.padding(mask=mask[:, 0, 0])")),
        (torch.ones(BATCH, M, M, dtype=torch.bool), ("4 heads", "mask[:, None]")),
        (torch.ones(3, M, M, dtype=torch.bool), ("(3, 24, 24)", "(Hq, M, N) = (4, 24, 24)")),
        (torch.ones(3, 1, M, M, dtype=torch.bool), ("(3, 1, 24, 24)", "B = 2")),
        (torch.ones(M, M + 1, dtype=torch.bool), ("(24, 25)", "(M, N) = (24, 24)")),
        (torch.ones(1, M, dtype=torch.bool), ("(1, 24)", "mask.expand")),
        (torch.ones(M, dtype=torch.bool), ("(24,)",)),
        (torch.zeros(M, M), ("torch.float32", "mask == 0")),
        (torch.ones(M, M, dtype=torch.int64), ("torch.int64", "mask != 0")),
        (triangle().to("meta"), ("meta",)),
        (triangle().to_sparse(), ("layout", "to_dense")),
        (triangle().numpy(), ("mask=ndarray", "weft.recognize(mask).pattern")),
        (None, ("mask=None", "weft.full()")),
        ("causal", ("mask=str",)),
    ],
)
def test_what_is_no_mask_of_the_call(mask, words):
    for _ in range(2):
        refuse(lambda: weft.attention(*X, mask), InputError, words)
    with pytest.raises(InputError):
        weft.plan(mask, *X)


def test_padding_of_the_refusal_is_right():
    mask = torch.ones(BATCH, M, dtype=torch.bool)
    mask[0, 9:], mask[1, :4] = False, False
    pattern = weft.causal() & weft.padding(mask=mask)
    torch.testing.assert_close(weft.attention(*X, pattern), dense(triangle() & mask[:, None, None]))


# ---- Recognized, plans, modules --------------------------------------------------------------------------------------
def test_a_recognized():
    found = weft.recognize(near)
    torch.testing.assert_close(weft.attention(*X, found), dense(live_of(near)))
    assert weft.plan(found, *X).nnz == weft.plan(found.pattern, *X).nnz
    torch.testing.assert_close(SparseAttention(found)(*X), dense(live_of(near)))


@pytest.mark.parametrize("make", [triangle, lambda: near, lambda: block_mask(near), lambda: weft.recognize(near)])
def test_plans_and_explanations(make):
    mask = make()
    weft.plan(mask, *X).verify()
    assert "recognised" in weft.explain(mask, *X)


def test_a_module_keeps_patterns_alone():
    for mask in (triangle(), near):
        refuse(lambda mask=mask: SparseAttention(mask), InputError, ("weft.recognize(mask).pattern",))


# ---- compiled, captured, threads, bounds -----------------------------------------------------------------------------
@pytest.mark.parametrize("mask", [triangle(), near], ids=["tensor", "function"])
def test_inside_a_compiled_function_a_mask_is_refused(mask):
    torch._dynamo.reset()
    compiled = torch.compile(weft.attention, backend="eager", fullgraph=True)
    line = as_dynamo_says(r"pattern = weft\.recognize\(mask\)\.pattern outside of it")
    with pytest.raises(torch._dynamo.exc.Unsupported, match=line):
        compiled(*X, mask)
    pattern = weft.recognize(mask).pattern
    torch.testing.assert_close(compiled(*X, pattern), weft.attention(*X, pattern))


def test_a_recognized_inside_a_compiled_function():
    torch._dynamo.reset()
    found = weft.recognize(near)
    compiled = torch.compile(lambda q, k, v: weft.attention(q, k, v, found), backend="eager", fullgraph=True)
    assert torch.equal(compiled(*X), weft.attention(*X, found.pattern))


@pytest.mark.parametrize("mask", [triangle(), near], ids=["tensor", "function"])
def test_while_a_graph_is_captured_a_miss_is_refused(mask):
    with mock.patch.object(masks, "is_capturing", lambda: True):
        refuse(
            lambda: weft.attention(*X, mask), UnsupportedError, ("while a CUDA graph is captured", "before the capture")
        )
    expected = weft.attention(*X, mask)
    with mock.patch.object(masks, "is_capturing", lambda: True):
        assert torch.equal(weft.attention(*X, mask), expected)


def test_threads():
    lives = [torch.ones(M, M, dtype=torch.bool).tril(-i) for i in range(6)]
    expected = [dense(live) for live in lives]

    def one(i):
        at = i % 6
        mask = lives[at] if i % 2 else windowed_by(at)
        return torch.allclose(weft.attention(*X, mask), expected[at], atol=1e-5)

    def windowed_by(at):
        return lambda b, h, q, k: k <= q - at

    with mock.patch.object(mask_cache, "KEPT", 4), mock.patch.object(masks, "KEPT", 4), ThreadPoolExecutor(4) as go:
        assert all(go.map(one, range(300)))


def test_few_are_kept():
    few = (
        mock.patch.object(mask_cache, "KEPT", 5), mock.patch.object(mask_cache, "SIZES", 3),
        mock.patch.object(masks, "KEPT", 5),
    )  # fmt: skip
    with few[0], few[1], few[2]:
        for size in range(12):
            weft.attention(*X, windowed(size + 1))
            assert len(masks._recognized) <= 5 and len(masks._patterns) <= 5
        for m in range(8, 16):
            x = qkv(m)
            weft.attention(*x, same_document)
        assert max(masks._recognized.sizes()) <= 3


def test_equal_masks_share_a_plan():
    """Of new tensors at every step; so no step is planned anew."""
    with mock.patch("weft.torch.eager.prepare", side_effect=weft.torch.eager.prepare) as planned:
        for _ in range(4):
            weft.attention(*X, triangle())
    assert planned.call_count <= 1


def test_forgotten_with_the_plans():
    from weft import caching

    weft.attention(*X, near)
    caching.clear()
    assert not masks._recognized and not masks._patterns


def test_errors_of_recognition_are_the_library_s_own():
    with pytest.raises(WeftError, match="not booleans"):
        weft.attention(*X, lambda b, h, q, k: q - k)


def test_a_fingerprint_tells_types_apart():
    keys = [fingerprint(windowed(size)).key for size in (1, True, 1.0, "1", None, (1,), [1], b"1", 1j)]
    assert len(set(keys)) == len(keys)
    assert fingerprint(windowed(1)).key == keys[0]
