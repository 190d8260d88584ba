"""Masks that were met twice are found by a look at what they read; what of it changed is seen."""

import gc
import types
import weakref
from unittest import mock

import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import and_masks

import weft
from weft import caching
from weft.torch import masks

from . import mask_calls
from .mask_calls import M, X, dense, held, live_of, near, same_document, triangle, windowed

SCALE = 3


def looks(mask):
    """How many fingerprints are made in a call after three."""
    for _ in range(3):
        weft.attention(*X, mask)
    with mock.patch.object(masks, "fingerprint", side_effect=masks.fingerprint) as asked:
        weft.attention(*X, mask)
    return asked.call_count


def of_table(table):
    return lambda b, h, q, k: table[q] == table[k]


def of_two(table):
    return lambda q, k: table[q] == table[k]


def of_list(sizes):
    return lambda b, h, q, k: q - k < sizes[0]


def of_array(x):
    return lambda b, h, q, k: torch.from_numpy(x)[q] == torch.from_numpy(x)[k]


def of_object(x):
    return lambda b, h, q, k: q - k < x.size


def with_default(b, h, q, k, size=4):
    return q - k < size


def of_builtin(b, h, q, k):
    return q - k < max(SCALE, 1)


FOUND = {
    "a tensor": triangle, "a global": lambda: near, "a tensor in a global": lambda: same_document,
    "a number captured": lambda: windowed(4), "a tensor captured": lambda: of_table(torch.arange(M) // 5),
    "functions in a tuple": lambda: and_masks(windowed(4), of_table(torch.arange(M) // 5)),
    "a default": lambda: with_default, "a builtin": lambda: of_builtin,
}  # fmt: skip
NOT_FOUND = {
    "a list": lambda: of_list([3]),
    "an array": lambda: of_array(np.arange(M)),
    "an object": lambda: of_object(types.SimpleNamespace(size=3)),
}


@pytest.mark.parametrize("name", FOUND)
def test_no_fingerprint_of_what_was_met_twice(name):
    mask = FOUND[name]()
    assert looks(mask) == 0
    live = mask if isinstance(mask, torch.Tensor) else live_of(mask)
    torch.testing.assert_close(weft.attention(*X, mask), dense(live))


@pytest.mark.parametrize("name", NOT_FOUND)
def test_a_fingerprint_of_what_changes_in_itself(name):
    assert looks(NOT_FOUND[name]()) == 1


def changed(mask, change):
    """Found by a look before a change, and right after it."""
    assert looks(mask) == 0
    before = live_of(mask)
    change()
    after = live_of(mask)
    assert not torch.equal(before, after), "the change changes nothing"
    assert held(mask, after) == 1
    assert looks(mask) == 0


def test_code_and_defaults_replaced():
    def mask(b, h, q, k, size=4):
        return q - k < size

    changed(mask, lambda: setattr(mask, "__defaults__", (2,)))
    changed(mask, lambda: setattr(mask, "__code__", (lambda b, h, q, k, size=4: q - k < size + 1).__code__))


def test_globals_set_deleted_and_put_before_builtins(monkeypatch):
    changed(of_builtin, lambda: monkeypatch.setitem(globals(), "SCALE", 5))
    changed(of_builtin, lambda: monkeypatch.setitem(globals(), "max", min))
    assert held(of_builtin, live_of(of_builtin)) == 0
    monkeypatch.delitem(globals(), "max")
    assert held(of_builtin, live_of(of_builtin)) == 0  # as it was met before


def test_a_table_in_a_global_in_place_and_replaced(monkeypatch):
    table = torch.arange(M) // 7
    monkeypatch.setattr(mask_calls, "TABLE", table)
    changed(same_document, lambda: table.floor_divide_(2))
    changed(same_document, lambda: monkeypatch.setattr(mask_calls, "TABLE", torch.arange(M) // 5))


def test_what_inner_functions_capture():
    table, size = torch.arange(M) // 7, 9

    def inner(q, k):
        return (table[q] == table[k]) & (q - k < size)

    def mask(b, h, q, k):
        return inner(q, k)

    def shorter():
        nonlocal size
        size = 2

    def replaced():
        nonlocal inner
        inner = lambda q, k: q >= k  # noqa: E731

    changed(mask, lambda: table.floor_divide_(2))
    changed(mask, shorter)
    changed(mask, lambda: setattr(table, "data", torch.arange(M) // 4))
    changed(mask, replaced)


def test_a_method_of_a_tensor_that_changes_in_place():
    table = torch.arange(M) // 7
    read = table.__getitem__

    def mask(b, h, q, k):
        return read(q) == read(k)

    before = live_of(mask)
    assert held(mask, before) == 1
    table.floor_divide_(2)
    assert not torch.equal(before, live_of(mask))
    assert held(mask, live_of(mask)) == 1


@pytest.mark.parametrize("function", [False, True])
def test_what_a_mask_read_is_not_kept_alive(function):
    table = torch.arange(M) // 7
    seen = weakref.ref(table)

    def mask(b, h, q, k):
        return inner(q, k)

    inner = of_two(table)
    assert looks(mask) == 0
    del table
    if function:
        del mask
    inner = None
    gc.collect()
    assert seen() is None
    assert not function or all(met.mask() is not None for met in masks._met.values())


def test_forgotten_with_masks_and_plans():
    mask = windowed(5)
    assert looks(mask) == 0
    assert id(mask) in masks._met
    del mask
    gc.collect()
    assert not [met for met in masks._met.values() if met.mask() is None]
    assert looks(near) == 0
    caching.clear()
    assert not masks._met and not masks._once


def test_few_are_kept():
    with mock.patch.object(masks, "KEPT", 4):
        several = [windowed(size + 1) for size in range(9)]
        for mask in several:
            looks(mask)
        assert len(masks._met) <= 4 and len(masks._once) <= 4
    with mock.patch.object(masks, "SIZES", 2):
        for m in range(10, 15):
            x = [t[:, :, :m] for t in X]
            for _ in range(3):
                torch.testing.assert_close(weft.attention(*x, near), dense(live_of(near, m), x))
        assert len(masks._met[id(near)].made) <= 2


def test_a_new_function_at_every_step_is_not_watched():
    caching.clear()
    several = [windowed(3) for _ in range(5)]
    for mask in several:
        weft.attention(*X, mask)
    assert not masks._met
