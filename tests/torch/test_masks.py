"""Masks as callers hold them: recognised once, found again while they are the same, and anew when they are not."""

import functools
import gc
import types
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from unittest import mock

import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import BlockMask, and_masks, create_block_mask

import weft
from weft.errors import InputError, LengthError, UnsupportedError, WeftError
from weft.testing.cases import BATCH, CASES, HEADS, At
from weft.testing.refusals import refuse
from weft.torch import SparseAttention, masks
from weft.torch.fingerprint import LONGEST, fingerprint

from .helpers import qkv

M = 24
X = qkv(M, batch=BATCH, heads=(HEADS, 2))


@pytest.fixture(autouse=True)
def nothing_known():
    masks.forget()
    yield
    masks.forget()


@contextmanager
def recognitions():
    """Counts what is recognised meanwhile."""
    with mock.patch.object(masks, "_recognize", side_effect=masks._recognize) as counted:
        yield counted


def dense(live, x=None):
    """What torch gives under a boolean mask, 0 in rows without keys."""
    q, k, v = X if x is None else x
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    live = torch.as_tensor(live)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=live).nan_to_num(0.0)


def held(mask, live):
    """The call again and again, with one recognition."""
    with recognitions() as counted:
        for _ in range(3):
            torch.testing.assert_close(weft.attention(*X, mask), dense(live))
    return counted.call_count


def triangle(m=M, n=None):
    return torch.ones(m, m if n is None else n, dtype=torch.bool).tril()


# ---- tensors ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", CASES)
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
    assert len(masks._known) == 1
    del live
    gc.collect()
    assert not masks._known


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


# ---- functions -------------------------------------------------------------------------------------------------------
WINDOW = 5
TABLE = torch.arange(M) // 7
ARRAY = np.arange(M) // 5
SETTINGS = types.SimpleNamespace(window=3, nested=types.SimpleNamespace(document=TABLE))


def near(b, h, q, k):
    return (q >= k) & (q - k < WINDOW)


def same_document(b, h, q, k):
    return TABLE[q] == TABLE[k]


def live_of(function, m=M, n=None):
    """The mask of a function, by every pair."""
    b, h, q, k = (torch.arange(size).view(shape) for size, shape in (
        (BATCH, (-1, 1, 1, 1)), (HEADS, (-1, 1, 1)), (m, (-1, 1)), (m if n is None else n, (-1,)),
    ))  # fmt: skip
    found = function(b, h, q, k)
    return torch.broadcast_to(found, (BATCH, HEADS, m, m if n is None else n))


class Window:
    """A callable object, with a method that reads what it was made with."""

    def __init__(self, size):
        self.size = size

    @property
    def reach(self):
        return self.size - 1

    def near(self, q, k):
        return q - k <= self.reach

    def __call__(self, b, h, q, k):
        return (q >= k) & self.near(q, k)


@dataclass
class Config:
    window: int = 4
    unused: object = None


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.window = 6
        self.register_buffer("ids", torch.arange(M) // 9)
        self.weight = torch.nn.Parameter(torch.zeros(3))

    def mask(self, b, h, q, k):
        return (q - k < self.window) & (self.ids[q] == self.ids[k])


CONFIG = Config()
FUNCTIONS = {
    "a global": near,
    "a global tensor": same_document,
    "joined": and_masks(near, same_document),
    "an object": Window(4),
    "a method": Block().mask,
    "a partial": functools.partial(lambda w, b, h, q, k: q - k < w, 3),
    "a default": lambda b, h, q, k, w=3: q - k < w,
    "a dataclass": lambda b, h, q, k: q - k < CONFIG.window,
    "nested": lambda b, h, q, k: (
        (q - k < SETTINGS.window) & (SETTINGS.nested.document[q] == SETTINGS.nested.document[k])
    ),
    "by head": lambda b, h, q, k: q - k < 2 + h,
    "by batch row": lambda b, h, q, k: q - k < 2 + 3 * b,
    "a tensor by batch row": lambda b, h, q, k: k < torch.tensor([9, 20])[b],
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name):
    function = FUNCTIONS[name]
    assert held(function, live_of(function)) == 1


def test_of_two_indices():
    assert held(lambda q, k: q >= k, triangle()) == 1


def test_one_recognition_for_all_lengths_where_nothing_bounds_it():
    with recognitions() as counted:
        for m, n in ((5, 5), (24, 24), (7, 30)):
            x = qkv(m, n)
            torch.testing.assert_close(weft.attention(*x, near), dense(live_of(near, m, n), x))
    assert counted.call_count == 1


def test_a_table_longer_than_the_call():
    x = qkv(10)
    torch.testing.assert_close(weft.attention(*x, same_document), dense(live_of(same_document, 10), x))
    torch.testing.assert_close(weft.attention(*X, same_document), dense(live_of(same_document)))


def windowed(size):
    return lambda b, h, q, k: (q >= k) & (q - k < size)


def test_the_same_code_with_other_captures():
    for size in (1, 5, 1, True, 9, 5):
        torch.testing.assert_close(weft.attention(*X, windowed(size)), dense(live_of(windowed(size))))


def test_a_new_lambda_every_step():
    with recognitions() as counted:
        for size in (6, 6, 6, 7, 7, 6):
            found = weft.attention(*X, lambda b, h, q, k: (q >= k) & (q - k < size))  # noqa: B023 - called at once
            torch.testing.assert_close(found, dense(live_of(windowed(size))))
    assert counted.call_count == 2


def changed(function, change):
    """Before and after a change of what the function reads."""
    before = live_of(function)
    assert held(function, before) == 1
    change()
    after = live_of(function)
    assert not torch.equal(before, after), "the change changes nothing"
    assert held(function, after) == 1


def test_a_global_changed(monkeypatch):
    changed(near, lambda: monkeypatch.setitem(globals(), "WINDOW", 2))


def test_a_captured_tensor_changed_in_place():
    table = torch.arange(M) // 7
    changed(lambda b, h, q, k: table[q] == table[k], lambda: table.floor_divide_(2))


def test_a_captured_array_changed_in_place():
    table = np.arange(M) // 7

    def halve():
        table[:] //= 2

    changed(lambda b, h, q, k: torch.from_numpy(table)[q] == torch.from_numpy(table)[k], halve)


def test_a_captured_tensor_of_inference_mode():
    with torch.inference_mode():
        table = torch.arange(M) // 7
        changed(lambda b, h, q, k: table[q] == table[k], lambda: table.floor_divide_(2))


def test_a_captured_tensor_replaced_by_another_at_its_address():
    for divisor in (7, 5, 3, 7, 2, 5):
        table = torch.arange(M) // divisor
        function = functools.partial(lambda t, b, h, q, k: t[q] == t[k], table)
        torch.testing.assert_close(weft.attention(*X, function), dense(live_of(function)))
        del table, function
        gc.collect()


def test_attributes_changed():
    window, block, config = Window(4), Block(), Config()
    changed(window, lambda: setattr(window, "size", 7))
    changed(block.mask, lambda: setattr(block, "window", 2))
    other = Block()
    changed(other.mask, lambda: other.ids.floor_divide_(2))
    changed(lambda b, h, q, k: q - k < config.window, lambda: setattr(config, "window", 2))


def test_an_attribute_that_only_another_function_reads():
    """The object is handed to a helper, and the helper's names are what counts."""
    config = Config()

    def helper(c, q, k):
        return q - k < c.window

    changed(lambda b, h, q, k: helper(config, q, k), lambda: setattr(config, "window", 2))


def test_a_method_changed(monkeypatch):
    changed(Window(4), lambda: monkeypatch.setattr(Window, "near", lambda self, q, k: q - k <= 1))


def test_an_operator_of_an_object():
    class Table:
        def __init__(self):
            self.ids = torch.arange(M) // 7

        def __getitem__(self, index):
            return self.ids[index]

    table = Table()
    changed(lambda b, h, q, k: table[q] == table[k], lambda: setattr(table, "ids", torch.arange(M) // 2))


def test_containers_changed():
    sizes, by_name = [3, 9], {"window": 3}
    changed(lambda b, h, q, k: q - k < sizes[0], lambda: sizes.__setitem__(0, 6))
    changed(lambda b, h, q, k: q - k < by_name["window"], lambda: by_name.update(window=6))


def test_a_module_of_constants(monkeypatch):
    constants = types.ModuleType("constants_of_a_model")
    constants.WINDOW = 3
    changed(lambda b, h, q, k: q - k < constants.WINDOW, lambda: setattr(constants, "WINDOW", 8))


def test_parameters_that_a_mask_does_not_read_may_change():
    """A method of a module in training: its weights are new at every step."""
    block = Block()
    assert held(block.mask, live_of(block.mask)) == 1
    with torch.no_grad():
        block.weight.add_(1)
    assert held(block.mask, live_of(block.mask)) == 0


class Answering:
    def __getattr__(self, name):
        return 4


ANSWERING, SLOTTED_LIST = Answering(), types.MappingProxyType({"window": 3})
UNSEEN = {
    "answers at run time": (lambda b, h, q, k: q - k < ANSWERING.window, "answers names at run time"),
    "a view of a mapping": (lambda b, h, q, k: q - k < SLOTTED_LIST["window"], "mappingproxy"),
    "getattr": (lambda b, h, q, k: q - k < getattr(CONFIG, "window"), "by getattr"),  # noqa: B009 - that is the point
    "globals": (lambda b, h, q, k: q - k < globals()["WINDOW"], "by globals"),
    "many": (functools.partial(lambda t, b, h, q, k: q - k < len(t), list(range(LONGEST + 1))), "4097 entries"),
}


@pytest.mark.parametrize("name", UNSEEN)
def test_what_could_change_unseen_is_refused(name):
    function, says = UNSEEN[name]
    refuse(lambda: weft.attention(*X, function), InputError, (says, "weft.recognize(", ".pattern"))


def imports(b, h, q, k):
    from tests.torch import helpers

    return q - k < helpers.__name__.count("t")


def test_an_import_inside_is_refused():
    refuse(lambda: weft.attention(*X, imports), InputError, ("imports tests.torch",))


def unruly(b, h, q, k):
    return (q * q * k) % 1013 < 500


def test_a_function_without_a_closed_form_is_refused_with_the_line():
    line = "weft.recognize(unruly, size=(24, 24), batch=2, heads=4).pattern"
    refuse(lambda: weft.attention(*X, unruly), InputError, (line, "24 x 24 pairs"))
    pattern = weft.recognize(unruly, size=(24, 24), batch=2, heads=4).pattern
    torch.testing.assert_close(weft.attention(*X, pattern), dense(live_of(unruly)))


def test_a_function_of_other_arguments():
    refuse(lambda: weft.attention(*X, lambda q: q), InputError, ("(q, k)",))


# ---- BlockMask -------------------------------------------------------------------------------------------------------
def block_mask(function, batch=None, heads=None, m=M, size=8):
    return create_block_mask(function, batch, heads, m, m, device="cpu", BLOCK_SIZE=size)


@pytest.mark.parametrize("name", ["a global", "a global tensor", "joined", "an object", "nested"])
def test_block_masks(name):
    function = FUNCTIONS[name]
    assert held(block_mask(function), live_of(function)) == 1


def test_block_masks_of_heads_and_batch_rows():
    for name, batch, heads in (("by head", None, HEADS), ("by batch row", BATCH, None), ("by head", BATCH, HEADS)):
        assert held(block_mask(FUNCTIONS[name], batch, heads), live_of(FUNCTIONS[name])) == 1


def test_a_block_mask_of_another_size_of_blocks_and_ragged_ends():
    x = qkv(21)
    torch.testing.assert_close(weft.attention(*x, block_mask(near, m=21, size=(4, 16))), dense(live_of(near, 21), x))


def test_a_block_mask_whose_function_reads_what_has_changed(monkeypatch):
    """Its blocks are those of the function as it was."""
    mask = block_mask(near)
    assert held(mask, live_of(near)) == 1
    monkeypatch.setitem(globals(), "WINDOW", 20)
    refuse(
        lambda: weft.attention(*X, mask), InputError, ("not those of its mask_mod", "block (2, 0)", "create_block_mask")
    )


def test_a_block_mask_of_blocks_alone():
    counts, indices = (
        torch.tensor(x, dtype=torch.int32) for x in ([[[1, 2, 1]]], [[[[0, 1, 2], [2, 0, 1], [1, 0, 2]]]])
    )
    mask = BlockMask.from_kv_blocks(counts, indices, BLOCK_SIZE=8, seq_lengths=(M, M))
    listed = torch.tensor([[1, 0, 0], [1, 0, 1], [0, 1, 0]], dtype=torch.bool)
    live = listed.repeat_interleave(8, 0).repeat_interleave(8, 1)
    assert held(mask, live) == 1


def test_a_block_mask_that_lists_fewer_or_fuller_blocks_than_its_function():
    counts, indices = (
        torch.tensor(x, dtype=torch.int32) for x in ([[[1, 1, 1]]], [[[[0, 1, 2], [1, 0, 2], [2, 0, 1]]]])
    )
    fewer = BlockMask.from_kv_blocks(counts, indices, BLOCK_SIZE=8, mask_mod=near, seq_lengths=(M, M))
    refuse(lambda: weft.attention(*X, fewer), InputError, ("block (1, 0)", "not listed"))
    fuller = BlockMask.from_kv_blocks(
        counts * 0, indices, counts + 2, indices, BLOCK_SIZE=8, mask_mod=near, seq_lengths=(M, M)
    )
    refuse(lambda: weft.attention(*X, fuller), InputError, ("block (0, 0)", "listed as full"))


def test_a_block_mask_of_other_lengths():
    refuse(lambda: weft.attention(*X, block_mask(near, m=32)), LengthError, ("32 x 32", "24 queries"))


def test_its_lists_changed_in_place():
    mask = block_mask(near)
    weft.attention(*X, mask)
    mask.kv_num_blocks.sub_(mask.kv_num_blocks.clone())
    refuse(lambda: weft.attention(*X, mask), InputError, ("not listed",))


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
    with pytest.raises(torch._dynamo.exc.Unsupported) as raised:
        compiled(*X, mask)
    assert "pattern = weft.recognize(mask).pattern outside of it" in str(raised.value)
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

    with mock.patch.object(masks, "KEPT", 4), ThreadPoolExecutor(4) as go:
        assert all(go.map(one, range(300)))


def test_few_are_kept():
    with mock.patch.object(masks, "KEPT", 5), mock.patch.object(masks, "SIZES", 3):
        for size in range(12):
            weft.attention(*X, windowed(size + 1))
            assert len(masks._known) <= 5 and len(masks._patterns) <= 5
        for m in range(8, 16):
            x = qkv(m)
            weft.attention(*x, same_document)
        assert all(len(known.by_size) <= 3 for known in masks._known.values())


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
    assert not masks._known and not masks._patterns


def test_errors_of_recognition_are_the_library_s_own():
    with pytest.raises(WeftError, match="not booleans"):
        weft.attention(*X, lambda b, h, q, k: q - k)


def test_a_fingerprint_tells_types_apart():
    keys = [fingerprint(windowed(size)).key for size in (1, True, 1.0, "1", None, (1,), [1], b"1", 1j)]
    assert len(set(keys)) == len(keys)
    assert fingerprint(windowed(1)).key == keys[0]
