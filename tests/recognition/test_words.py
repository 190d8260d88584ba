"""What recognition prints can be written: public names, and the words that a user would choose."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.tiers import examples

import weft
from weft.pattern.arguments import LIBRARY
from weft.recognition import recognize
from weft.recognition.words import reworded
from weft.testing.mask_functions import as_function
from weft.testing.strategies import patterns, per_row_patterns, problems

torch = pytest.importorskip("torch")
ONCE = {"deadline": None, "suppress_health_check": list(HealthCheck)}
INTERNAL = {"packed", "on_grid"}  # what calls with packed or grid-shaped tensors are translated to
NAMES = {name: getattr(weft, name) for name in weft.__all__}


def evaluated(pattern):
    """The pattern of a whole text, with the names that are public and no others."""
    return eval(repr(pattern), {"__builtins__": {}}, NAMES)


def test_every_library_function_is_public():
    assert set(LIBRARY) - INTERNAL <= set(weft.__all__)
    named = set(LIBRARY) - INTERNAL - {"padding"}  # whose public function takes a mask too
    assert all(LIBRARY[name].__doc__ and getattr(weft, name) is LIBRARY[name] for name in named)


@settings(max_examples=examples(60), **ONCE)
@given(problems(longest=40))
def test_what_masks_are_can_be_written(problem):
    pattern, m, n = problem
    found = recognize(pattern.to_dense(m, n)).pattern
    assert evaluated(found) == found and evaluated(found).structure == found.structure


@settings(max_examples=examples(40), **ONCE)
@given(problems(longest=40))
def test_what_functions_are_can_be_written(problem):
    pattern, m, n = problem
    found = recognize(as_function(pattern, m, n), size=(m, n)).pattern
    assert evaluated(found) == found


@settings(max_examples=examples(15), **ONCE)
@given(per_row_patterns())
def test_what_batch_rows_and_heads_are_can_be_written(pattern):
    found = recognize(pattern.to_dense(33)).pattern
    assert evaluated(found) == found


@pytest.mark.parametrize("n", [100, 3000])
def test_long_tables_are_whole_in_repr_and_cut_in_str(n):
    rng = np.random.default_rng(0)
    for pattern in (weft.documents(ids=rng.integers(0, 5, n)), weft.global_tokens(rng.integers(0, 9 * n, n)),
                    weft.bits(rng.integers(0, 1 << 40, n), n, 50)):  # fmt: skip
        assert evaluated(pattern) == pattern
        assert len(repr(pattern)) > 2 * n
        assert len(str(pattern)) < 200 if n > 256 else str(pattern) == repr(pattern)


# ---- words -----------------------------------------------------------------------------------------------------------
LENGTHS = [40, 100, 7, 153, 300]
N = sum(LENGTHS)
IDS = torch.repeat_interleave(torch.arange(5), torch.tensor(LENGTHS))
WORDS = {
    "causal, window, documents": (
        lambda q, k: (k <= q) & (q - k <= 63) & (IDS[q] == IDS[k]),
        weft.causal() & weft.window(left=63) & weft.documents(LENGTHS),
    ),
    "causal, window": (lambda q, k: (k <= q) & (q - k <= 63), weft.causal() & weft.window(left=63)),
    "causal, documents": (lambda q, k: (IDS[q] == IDS[k]) & (q >= k), weft.causal() & weft.documents(LENGTHS)),
    "window, documents": (
        lambda q, k: ((q - k).abs() <= 20) & (IDS[q] == IDS[k]),
        weft.window(20, 20) & weft.documents(LENGTHS),
    ),
    "causal, chunks": (lambda q, k: (k <= q) & (q // 50 == k // 50), weft.causal() & weft.chunks(50)),
    "causal, window, chunks": (
        lambda q, k: (q // 50 == k // 50) & (q - k < 20) & (k <= q),
        weft.causal() & weft.window(left=19) & weft.chunks(50),
    ),
    "window to the right": (lambda q, k: (k - q <= 5) & (q - k <= 9), weft.window(9, 5)),
    "itself": (lambda q, k: q == k, weft.window(0, 0)),
}


@pytest.mark.parametrize("name", WORDS)
def test_words(name):
    function, expected = WORDS[name]
    found = recognize(function, size=(N, N)).pattern
    assert found in (expected, weft.sized(expected, N, N))
    assert recognize(expected.to_dense(N)).pattern == weft.sized(expected, N, N)


@settings(max_examples=examples(80), **ONCE)
@given(patterns(4), st.integers(1, 70), st.integers(1, 70))
def test_other_words_mean_the_same(pattern, m, n):
    pattern = pattern.filled("top-left")
    assert (reworded(pattern, n).to_dense(m, n) == pattern.to_dense(m, n)).all()


SIDES = st.sampled_from(("from", "before"))


@settings(max_examples=examples(80), **ONCE)
@given(SIDES, st.integers(-30, 30), st.integers(-9, 9), st.none() | st.tuples(st.integers(0, 40), st.integers(0, 40)))
def test_stairs_of_slope_one_are_distances(side, shift, base, clip):
    ends = None if clip is None else (min(clip), max(clip))
    pattern = weft.staircase(side, (1, 1), (shift, base), ends, align="top-left")
    for n in (None, 40):
        assert (reworded(pattern, n).to_dense(33, 40) == pattern.to_dense(33, 40)).all()
    if ends is None:
        assert "staircase" not in str(reworded(pattern, 40))
