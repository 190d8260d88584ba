"""Calls in other libraries' words, and operands that are no patterns: each refusal holds a line that runs."""

import inspect
import re

import numpy as np
import pytest
import torch

import weft
from weft.errors import ArgumentError
from weft.pattern import misuse
from weft.testing.refusals import refuse

LINE = re.compile(r"weft\.(?:causal\(\) & weft\.)?\w+\([^()]*\)")


def lines(call):
    """The patterns that the cure of a refused call says."""
    return [eval(line) for line in LINE.findall(refuse(call, ArgumentError).cure)]


@pytest.mark.parametrize("word", ["size", "window", "width", "window_size", "sliding_window"])
@pytest.mark.parametrize("width", [1, 5, 8])
def test_one_number_for_a_window_gets_both_readings(word, width):
    before, around = lines(lambda: weft.window(**{word: width}))
    assert before.to_dense(64)[40].sum() == width
    assert around.to_dense(64)[40].sum() == 2 * (width // 2) + 1


@pytest.mark.parametrize(
    "pair, line",
    [((255, 0), "weft.window(255, 0)"), ([3, 4], "weft.window(3, 4)"), ((-1, 0), "weft.window(None, 0)"),
     ((None, 2), "weft.window(None, 2)"), (np.array([7, 0]), "weft.window(7, 0)")],
)  # fmt: skip
def test_a_pair_for_a_window_is_taken_apart(pair, line):
    assert line in refuse(lambda: weft.window(pair), ArgumentError, ("window((",)).cure


def test_a_pair_by_name():
    assert "weft.window(255, 0)" in refuse(lambda: weft.window(window_size=(255, 0)), ArgumentError).cure


def test_negative_sides_are_told_of_none():
    with pytest.raises(weft.errors.PatternError, match="None for an unbounded side"):
        weft.window(-1, 0)


def test_the_word_of_others_for_a_neighbourhood():
    (line,) = lines(lambda: weft.neighborhood(8, kernel_size=3))
    assert line == weft.neighborhood(8, 3)
    cure = refuse(lambda: weft.neighborhood((8, 8), kernel_size=3), ArgumentError, ("no argument kernel_size",)).cure
    assert "weft.neighborhood((8, 8), 3)" in cure


@pytest.mark.parametrize("function, word", misuse.WORDS)
def test_every_word_leads_to_an_argument_or_a_function_that_exists(function, word):
    parameters = inspect.signature(getattr(weft, function)).parameters
    assert word not in parameters
    said = refuse(lambda: getattr(weft, function)(**{word: 3}), ArgumentError, (function, f"no argument {word}")).cure
    assert set(re.findall(r"pass (\w+)=", said)) <= set(parameters)
    names = re.findall(r"weft\.(\w+)\(", said)
    assert names or "pass " in said
    assert all(hasattr(weft, name) for name in names)


def test_a_misspelt_argument_gets_the_near_one_and_a_foreign_one_the_form():
    assert "left=3" in refuse(lambda: weft.window(lft=3), ArgumentError, ("no argument lft",)).cure
    assert "weft.global_tokens(tokens," in refuse(lambda: weft.global_tokens(num=3), ArgumentError).cure
    assert "weft.window(left=None" in refuse(lambda: weft.window(1, 2, None, 4), ArgumentError, ("too many",)).cure
    assert "weft.chunks(size" in refuse(weft.chunks, ArgumentError, ("missing", "size")).cure


def test_as_a_type_error_too():
    with pytest.raises(TypeError):
        weft.window(size=5)


@pytest.mark.parametrize(
    "mask", [torch.ones(4, 4).bool(), np.ones((4, 4), bool), lambda q, k: q >= k], ids=["tensor", "array", "function"]
)
def test_masks_are_recognised_before_they_are_joined(mask):
    for call in (
        lambda: weft.causal() & mask, lambda: mask & weft.causal(),
        lambda: weft.causal() | mask, lambda: mask | weft.causal(),
    ):  # fmt: skip
        found = refuse(call, ArgumentError, ("causal()", type(mask).__name__))
        assert "weft.recognize(mask).pattern" in found.cure


def test_what_was_recognised_is_joined_by_its_pattern():
    found = weft.recognize(lambda q, k: q >= k)
    assert "& found.pattern" in refuse(lambda: weft.window(3) & found, ArgumentError).cure
    assert (weft.window(3, align="top-left") & found.pattern).to_dense(8).sum() == 26


def test_other_things_are_no_patterns():
    assert "weft.window(" in refuse(lambda: weft.causal() & 3, ArgumentError, ("causal() & int",)).cure


@pytest.mark.parametrize(
    "name, near", [("atention", "attention"), ("wndow", "window"), ("neighbourhood", "neighborhood")]
)
def test_a_misspelt_name_of_weft_gets_the_near_one(name, near):
    with pytest.raises(AttributeError, match=f"has no attribute '{name}'; did you mean weft.{near}?"):
        getattr(weft, name)
