"""Mask functions and BlockMasks as masks: told apart by their code and by all that they read."""

import enum
import functools
import gc
import types
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import BlockMask, and_masks
from torch.nn.functional import scaled_dot_product_attention

import weft
from weft.errors import InputError, LengthError
from weft.testing.cases import BATCH, HEADS
from weft.testing.refusals import refuse
from weft.torch import masks
from weft.torch.fingerprint import LONGEST

from . import mask_calls
from .helpers import qkv
from .mask_calls import (
    TABLE,
    M,
    X,
    block_mask,
    dense,
    held,
    live_of,
    near,
    recognitions,
    same_document,
    triangle,
    windowed,
)


@pytest.fixture(autouse=True)
def nothing_known():
    masks.forget()
    yield
    masks.forget()


# ---- functions -------------------------------------------------------------------------------------------------------
SETTINGS = types.SimpleNamespace(window=3, nested=types.SimpleNamespace(document=TABLE))


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
    changed(near, lambda: monkeypatch.setattr(mask_calls, "WINDOW", 2))


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


class Slotted:
    __slots__ = ("size",)

    def __init__(self, size):
        self.size = size


class Sizes(NamedTuple):
    near: int
    tokens: object


class Kind(enum.Enum):
    NEAR = 3
    FAR = 9


class Constants:
    window = 3

    @staticmethod
    def reach():
        return Constants.window + 1


def test_other_kinds_of_objects_changed(monkeypatch):
    slotted, sizes, chosen = Slotted(4), Sizes(3, types.SimpleNamespace(least=0)), {"kind": Kind.NEAR}
    width = [np.int64(4)]
    changed(lambda b, h, q, k: q - k < slotted.size, lambda: setattr(slotted, "size", 2))
    changed(
        lambda b, h, q, k: (q - k < sizes.near) & (k >= sizes.tokens.least), lambda: setattr(sizes.tokens, "least", 2)
    )
    changed(lambda b, h, q, k: q - k < chosen["kind"].value, lambda: chosen.update(kind=Kind.FAR))
    changed(lambda b, h, q, k: q - k < int(width[0]), lambda: width.__setitem__(0, np.int64(7)))
    changed(lambda b, h, q, k: q - k < Constants.reach(), lambda: monkeypatch.setattr(Constants, "window", 8))


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
    "globals": (lambda b, h, q, k: q - k < globals()["M"], "by globals"),
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
    monkeypatch.setattr(mask_calls, "WINDOW", 20)
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


# ---- batch rows and heads -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["rows", "pairs of rows", "heads"])
def test_more_rows_than_at_the_first_call(kind):
    """What a function says of one row, or of two that are alike, is nothing about others."""
    lengths = torch.tensor([5, 12, 3, 9])

    def near(b, h, q, k):
        return k < lengths[{"rows": b, "pairs of rows": b // 2, "heads": h}[kind]]

    for count in (1, 2, 4):
        shape = (1, count) if kind == "heads" else (count, 1)
        x = [torch.randn(*shape, 16, 8, dtype=torch.float64) for _ in range(3)]
        limits = lengths[torch.arange(count) // (2 if kind == "pairs of rows" else 1)].reshape(*shape, 1, 1)
        expected = scaled_dot_product_attention(*x, attn_mask=(torch.arange(16) < limits).expand(*shape, 16, 16))
        torch.testing.assert_close(weft.attention(*x, near), expected)
