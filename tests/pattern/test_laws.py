"""Laws that hold for every pattern expression, by hypothesis."""

import copy
import os
import pickle

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.tiers import examples

import weft
from weft.testing.strategies import ALIGNMENTS, axes, lengths, patterns, per_row_patterns, problems

from . import oracles as o
from .helpers import same, same_acsr

# Under CI the examples are always the same; elsewhere every run draws new ones.
laws = settings(
    max_examples=examples(150),
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
few = settings(laws, max_examples=examples(60))


@st.composite
def pairs(draw):
    """Two patterns and an (M, N) at which both can be asked."""
    m = draw(lengths())
    if draw(st.booleans()):
        return draw(patterns(3, length=m)), draw(patterns(3, length=m)), m, m
    align = draw(st.sampled_from(ALIGNMENTS))
    return draw(patterns(3)).aligned(align), draw(patterns(3)).aligned(align), m, draw(lengths())


@laws
@given(pairs())
def test_algebra_is_the_algebra_of_matrices(pair):
    a, b, m, n = pair
    dense_a, dense_b = a.to_dense(m, n), b.to_dense(m, n)
    same((a & b).to_dense(m, n), dense_a & dense_b, f"{a & b}")
    same((a | b).to_dense(m, n), dense_a | dense_b, f"{a | b}")
    same((~a).to_dense(m, n), ~dense_a, f"{~a}")
    same((~~a).to_dense(m, n), dense_a, f"{~~a}")


@laws
@given(pairs())
def test_de_morgan(pair):
    a, b, m, n = pair
    same((~(a & b)).to_dense(m, n), (~a | ~b).to_dense(m, n), f"{~(a & b)}")
    same((~(a | b)).to_dense(m, n), (~a & ~b).to_dense(m, n), f"{~(a | b)}")


@few
@given(pairs())
def test_de_morgan_of_the_format(pair):
    a, b, m, n = pair
    same((~(a & b)).acsr(m, n).to_dense(), (~a | ~b).acsr(m, n).to_dense(), f"{~(a & b)}")
    same((~(a | b)).acsr(m, n).to_dense(), (~a & ~b).acsr(m, n).to_dense(), f"{~(a | b)}")


small, size = st.integers(0, 9), st.integers(1, 70)
# Name, arguments, whether it takes align=: the oracle of the same name takes the same arguments.
leaf_calls = st.one_of(
    st.tuples(st.just("causal"), st.tuples(st.integers(-80, 80)), st.just(True)),
    st.tuples(st.just("window"), st.tuples(small | size, small | size | st.none()), st.just(True)),
    st.tuples(st.just("window"), st.tuples(st.none(), small | size), st.just(True)),
    st.tuples(st.just("dilated"), st.tuples(small, small, size), st.just(True)),
    st.tuples(st.just("strided"), st.tuples(size), st.just(True)),
    st.tuples(st.just("fixed"), st.tuples(size, size).map(lambda pair: (max(pair), min(pair))), st.just(True)),
    st.tuples(st.just("chunks"), st.tuples(size), st.just(True)),
    st.tuples(st.just("longformer"), st.tuples(small | size, small, st.integers(1, 9)), st.just(True)),
    st.tuples(st.just("periodic_keys"), st.tuples(size), st.just(False)),
    st.tuples(st.just("prefix"), st.tuples(size), st.just(False)),
    st.tuples(
        st.just("blocks"),
        st.tuples(st.tuples(size, size), st.lists(st.tuples(small, small), max_size=5)),
        st.just(False),
    ),
)


@laws
@given(leaf_calls, lengths(), lengths(), st.sampled_from(ALIGNMENTS))
def test_leaves_with_any_arguments(call, m, n, align):
    name, arguments, positional = call
    pattern = getattr(weft, name)(*arguments, **({"align": align} if positional else {}))
    expected = o.dense(lambda q, k: getattr(o, name)(q, k, *arguments), m, n, align if positional else None)
    same(pattern.to_dense(m, n), expected, f"{pattern}")
    same_acsr(pattern.acsr(m, n), expected, f"{pattern} at ({m}, {n})")


@few
@given(st.lists(st.integers(1, 6), min_size=1, max_size=3), st.data())
def test_neighborhoods_with_any_arguments(shape, data):
    drawn = [data.draw(axes(length)) for length in shape]
    size, stride, dilation, causal = zip(*drawn, strict=True)
    pattern = weft.neighborhood(shape, size, stride=stride, dilation=dilation, causal=causal)
    expected = o.neighborhood(shape, size, stride, dilation, causal)
    same(pattern.to_dense(len(expected)), expected, f"{pattern}")
    same_acsr(pattern.acsr(len(expected)), expected, f"{pattern}")


shifts = st.integers(-9, 9)


@laws
@given(problems(3), shifts, shifts, shifts, shifts)
def test_shift_moves_the_matrix_and_composes(problem, dq, dk, more_q, more_k):
    pattern, m, n = problem
    dense = pattern.to_dense(m, n)
    once = o.shift(dense, dq, dk)
    same(pattern.shift(q=dq, k=dk).to_dense(m, n), once, f"{pattern}.shift({dq}, {dk})")
    same(pattern.shift(dq, dk).shift(more_q, more_k).to_dense(m, n), o.shift(once, more_q, more_k), "shift twice")
    same(pattern.shift().to_dense(m, n), dense, "shift by nothing")
    if dq * more_q >= 0 and dk * more_k >= 0:
        both = pattern.shift(q=dq + more_q, k=dk + more_k)
        same(pattern.shift(dq, dk).shift(more_q, more_k).to_dense(m, n), both.to_dense(m, n), "shift composes")


@laws
@given(problems())
def test_the_format_says_what_the_pattern_says(problem):
    pattern, m, n = problem
    dense = pattern.to_dense(m, n)
    acsr = pattern.acsr(m, n)
    same_acsr(acsr, dense, f"{pattern} at ({m}, {n})")
    same(acsr.transpose().transpose().to_dense(), dense, f"{pattern} at ({m}, {n}): transposed twice")


@laws
@given(problems())
def test_no_pair_belongs_to_two_terms(problem):
    pattern, m, n = problem
    for acsr, expected in (
        (pattern.acsr(m, n), pattern.to_dense(m, n)),
        (pattern.acsr(m, n).transpose(), pattern.to_dense(m, n).T),
    ):
        owners = np.zeros(expected.shape, dtype=int)
        for term in acsr.terms:
            owners += term.to_dense(*expected.shape)
        assert owners.max(initial=0) <= 1, f"{pattern} at ({m}, {n}): a pair in {owners.max()} terms"
        assert not (owners[~expected]).any(), f"{pattern} at ({m}, {n}): a term holds a dead pair"


@few
@given(problems(3))
def test_contains_is_to_dense(problem):
    pattern, m, n = problem
    q, k = np.arange(m)[:, None], np.arange(n)[None, :]
    dense = pattern.to_dense(m, n)
    same(np.broadcast_to(pattern.contains(q, k, m, n), (m, n)), dense, f"{pattern} at ({m}, {n})")
    if m and n:
        diagonal = np.arange(min(m, n))
        same(pattern.contains(diagonal, diagonal, m, n), dense.diagonal(), "the diagonal alone")
        assert bool(pattern.contains(m - 1, n - 1, m, n)) == bool(dense[-1, -1])


@few
@given(per_row_patterns(), lengths())
def test_heads_and_batch_rows(pattern, m):
    dense = pattern.to_dense(m)
    assert dense.ndim == 4 and dense.shape[0] in (1, 3) and dense.shape[1] in (1, 2) and dense.shape[2:] == (m, m)
    for batch in range(dense.shape[0]):
        for head in range(dense.shape[1]):
            matrix = dense[batch, head]
            same_acsr(pattern.acsr(m, batch=batch, head=head), matrix, f"{pattern} at {m}, ({batch}, {head})")
            q, k = np.arange(m)[:, None], np.arange(m)[None, :]
            same(np.broadcast_to(pattern.contains(q, k, m, m, batch, head), (m, m)), matrix, f"{pattern}: contains")


@few
@given(per_row_patterns(2), per_row_patterns(2) | patterns(2), lengths())
def test_algebra_over_heads_and_batch_rows(a, b, m):
    dense_a, dense_b = a.to_dense(m), b.to_dense(m)
    same((a & b).to_dense(m), dense_a & dense_b, f"{a & b}")
    same((a | b).to_dense(m), dense_a | dense_b, f"{a | b}")
    same((~a).to_dense(m), ~dense_a, f"{~a}")


NAMES = {**vars(weft), "weft": weft}


@laws
@given(problems() | st.tuples(per_row_patterns(), lengths(), st.just(0)))
def test_a_pattern_is_the_expression_that_made_it(problem):
    pattern = problem[0]
    again = eval(str(pattern), NAMES)
    assert again == pattern, f"{pattern} became {again}"
    assert hash(again) == hash(pattern)
    assert str(again) == str(pattern) == repr(pattern)


@few
@given(problems())
def test_copies_are_equal(problem):
    pattern = problem[0]
    for again in (copy.deepcopy(pattern), pickle.loads(pickle.dumps(pattern))):
        assert again == pattern and hash(again) == hash(pattern) and str(again) == str(pattern)


@laws
@given(pairs())
def test_equal_patterns_mean_the_same(pair):
    a, b, m, n = pair
    equal, unlike = a == b, a != b
    assert equal is not unlike
    if equal:
        assert hash(a) == hash(b)
        same(a.to_dense(m, n), b.to_dense(m, n), f"{a} == {b}")
    assert (a & b) == (a & b) and (a | b) == (a | b) and ~a == ~a
    assert a != str(a) and a is not None
