"""Every library pattern, forward and backward, against three loops in float64."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

jax = pytest.importorskip("jax", reason="JAX is not installed")

from tests.jax.compare import check, enable_x64, make
from tests.tiers import examples

import weft
import weft.jax
from weft.jax.mask import planned
from weft.planning.problem import Problem
from weft.testing.cases import CASES, At
from weft.testing.strategies import problems

# Options take turns over the cases, so that each meets patterns of every kind.
OPTIONS = (
    {},
    {"softcap": 1.5},
    {"sinks": True},
    {"alibi_slopes": True},
    {"scale": -0.3, "softcap": 2.0, "sinks": True},
)
LENGTHS = ((130, 130), (150, 70), (37, 37), (40, 130))


def options_of(case, pattern, number):
    found = OPTIONS[number % len(OPTIONS)]
    told = set(pattern.alignments())
    if "alibi_slopes" in found and (case.grid or len(told) != 1):
        return OPTIONS[1]
    return found


@pytest.mark.parametrize("number, name", enumerate(CASES))
def test_every_library_pattern(number, name):
    case = CASES[name]
    m, n = next(at for at in LENGTHS[number % 4 :] + LENGTHS if case.fits(*at))
    pattern = case.make(At(m, n, None if m == n else ("bottom-right", "top-left")[number % 2]))
    with enable_x64(True):
        check(make(pattern, m, n, **options_of(case, pattern, number)), layout=("bshd", "bhsd")[number % 2])


@pytest.mark.parametrize("m, n", [(0, 0), (0, 7), (7, 0), (1, 1)])
def test_lengths_of_nothing_and_one(m, n):
    with enable_x64(True):
        check(make(weft.causal(align="bottom-right"), m, n, sinks=True))


@pytest.mark.parametrize("heads", [(1, 1), (6, 6), (6, 1), (12, 4)])
def test_heads_that_share_keys(heads):
    with enable_x64(True):
        check(make(weft.window(left=30, right=4), 90, 90, heads=heads, batch=3))


def test_heads_that_differ_within_a_group():
    mask = weft.per_head(
        [weft.causal(), weft.window(3, 3), weft.window(3, 3), weft.full(), weft.nothing(), weft.causal()]
    )
    with enable_x64(True):
        check(make(mask, 70, 70, heads=(6, 2)))
        check(make(mask, 70, 70, heads=(6, 3)))


def test_batch_rows_and_heads_that_differ():
    rows = [weft.per_head([weft.causal(), weft.chunks(9)]), weft.per_head([weft.prefix(5), weft.causal()])]
    with enable_x64(True):
        check(make(weft.per_batch(rows), 50, 50, heads=(2, 2)))


def test_heads_in_chunks(monkeypatch):
    """Scores of few heads at once: the loop over chunks of heads, in every dimension of them."""
    monkeypatch.setattr("weft.jax.places.TOGETHER", 1)
    with enable_x64(True):
        check(make(weft.causal(), 40, 40, batch=2, heads=(4, 2)))
        check(make(weft.per_head([weft.causal(), weft.full()] * 2), 41, 41, batch=2, heads=(4, 2)))
        check(make(weft.per_batch([weft.causal(), weft.chunks(7)]), 42, 42, batch=2, heads=(4, 2)))


def test_runs_of_keys_in_many_chunks(monkeypatch):
    monkeypatch.setattr("weft.jax.sizes.CHUNK", 32)
    monkeypatch.setattr("weft.jax.sizes.LONG_CHUNK", 32)
    monkeypatch.setattr("weft.jax.sizes.TABLE_CHUNK", 32)
    with enable_x64(True):
        for mask in (weft.causal(), weft.documents([3, 90, 20, 7, 61])):
            m = 181
            structure = planned(mask, Problem(1, 1, 1, m, m, 1, 1)).structure
            assert all(axis.width <= 32 for loop in structure.programs[0].loops for axis in loop.axes)
            check(make(mask, m, m, sinks=True))


@settings(max_examples=examples(8), deadline=None, suppress_health_check=list(HealthCheck))
@given(problems(max_leaves=3))
def test_drawn_patterns(drawn):
    with enable_x64(True):
        check(make(*drawn, softcap=3.0, batch=1, heads=(2, 1)))


def test_rows_without_keys_give_nothing_and_take_no_gradient():
    """Not even where the gradient of their output is not a number, or that of their lse infinite."""
    mask = weft.window(left=0) & weft.padding(20) & ~weft.prefix(10)
    q, k, v = (np.random.default_rng(i).normal(size=(1, 40, 2, 4)).astype(np.float32) for i in range(3))

    def loss(q, k, v):
        out, lse = weft.jax.attention(q, k, v, mask, return_lse=True)
        return (out * jax.numpy.where(out == 0, jax.numpy.nan, 1.0)).sum() + jax.numpy.exp(lse).sum(), (out, lse)

    (_, (out, lse)), grads = jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(q, k, v)
    seen = mask.to_dense(40).any(axis=1)
    assert not seen.all()
    assert (np.asarray(out)[:, ~seen] == 0).all()
    assert (np.asarray(lse)[:, ~seen] == -np.inf).all()
    assert (np.asarray(grads[0])[:, ~seen] == 0).all()
    assert all(np.isfinite(np.asarray(x)).all() for x in grads)
