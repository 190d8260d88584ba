"""The float64 meaning of an Acsr against a dense softmax written here, and its gradients against finite differences."""

import numpy as np
import pytest

import weft
from weft.acsr.interpret import Scoring, backward, forward

PLAIN = Scoring(scale=0.3)
SCORINGS = {
    "scale": PLAIN,
    "softcap": Scoring(scale=0.7, softcap=1.5),
    "alibi": Scoring(scale=0.3, slope=0.25),
    "alibi of shifted rows": Scoring(scale=0.3, slope=0.25, shift=-7),
    "sink": Scoring(scale=0.3, sink=0.4),
    "all": Scoring(scale=0.9, softcap=2.0, slope=0.125, shift=3, sink=-0.6),
}
# (pattern, M, N); several have rows, or keys, or both, that nobody sees
PATTERNS = [
    (weft.full(), 5, 7),
    (weft.nothing(), 4, 3),
    (weft.causal(), 9, 9),
    (weft.causal(offset=-3), 9, 9),
    (weft.causal(align="bottom-right"), 9, 6),
    (weft.window(2, 1) & ~weft.window(0, 0), 12, 12),
    (weft.dilated(2, 1, 3), 14, 14),
    (weft.strided(4), 11, 11),
    (weft.padding(6, rows=True), 9, 9),
    (weft.documents([3, 0, 5, 1]), 9, 9),
    (weft.documents(ids=[1, 2, 1, 3, 2, 2, 1]), 7, 7),
    (weft.longformer(4, 2), 13, 13),
    (weft.random_blocks(4, 1), 10, 30),
    (weft.neighborhood((3, 4), (3, 3)) & weft.causal(), 12, 12),
    (weft.full(), 0, 4),
    (weft.full(), 4, 0),
]
everywhere = pytest.mark.parametrize(("pattern", "m", "n"), PATTERNS, ids=str)
every_way = pytest.mark.parametrize("scoring", SCORINGS.values(), ids=SCORINGS)


def arrays(m, n, d=4, dv=3, seed=0):
    """q (M, D), k (N, D), v (N, Dv), d_out (M, Dv), d_lse (M,)."""
    draw = np.random.default_rng(seed).standard_normal
    return draw((m, d)), draw((n, d)), draw((n, dv)), draw((m, dv)), draw(m)


def dense_attention(mask, q, k, v, scoring):
    """(out, lse): the matrix of scores, masked, and a softmax with one more column for the sink."""
    s = scoring.scale * q @ k.T
    if scoring.softcap is not None:
        s = scoring.softcap * np.tanh(s / scoring.softcap)
    i, j = np.indices(mask.shape)
    s = np.where(mask, s - scoring.slope * abs(i + scoring.shift - j), -np.inf)
    sink = -np.inf if scoring.sink is None else scoring.sink
    s = np.concatenate([s, np.full((len(q), 1), sink)], axis=1)
    live = np.isfinite(s).any(axis=1)
    top = np.where(live, s.max(axis=1, initial=-np.inf), 0.0)
    weights = np.exp(s - top[:, None])
    total = weights.sum(axis=1)
    out = weights[:, :-1] @ v / np.where(live, total, 1.0)[:, None]
    return out, np.where(live, top + np.log(np.where(live, total, 1.0)), -np.inf)


@everywhere
@every_way
def test_forward_is_dense_attention(pattern, m, n, scoring):
    q, k, v, *_ = arrays(m, n)
    out, lse = forward(pattern.acsr(m, n), q, k, v, scoring)
    expected_out, expected_lse = dense_attention(pattern.to_dense(m, n), q, k, v, scoring)
    assert out.shape == (m, 3) and lse.shape == (m,)
    np.testing.assert_allclose(out, expected_out, rtol=0, atol=1e-13)
    np.testing.assert_allclose(lse, expected_lse, rtol=0, atol=1e-13)


def loss(mask, qkv, grads, scoring):
    """What `backward` differentiates: sum(out * d_out) + sum(lse * d_lse) over rows with a finite lse."""
    out, lse = dense_attention(mask, *qkv, scoring)
    d_out, d_lse = grads
    return float((out * d_out).sum() + np.where(np.isfinite(lse), lse, 0.0) @ d_lse)


def central_differences(function, x, step=1e-5):
    """The derivative of function() by every entry of x, which is moved in place."""
    slopes = np.zeros(x.shape)
    for index in np.ndindex(x.shape):
        kept = x[index]
        x[index] = kept + step
        above = function()
        x[index] = kept - step
        slopes[index] = (above - function()) / (2 * step)
        x[index] = kept
    return slopes


@everywhere
@every_way
def test_backward_is_the_slope(pattern, m, n, scoring):
    q, k, v, d_out, d_lse = arrays(m, n, d=2, dv=3)
    mask = pattern.to_dense(m, n)
    got = backward(pattern.acsr(m, n), (q, k, v), d_out, d_lse, scoring)
    for name, x, slopes in (("dq", q, got.dq), ("dk", k, got.dk), ("dv", v, got.dv)):
        expected = central_differences(lambda: loss(mask, (q, k, v), (d_out, d_lse), scoring), x)
        np.testing.assert_allclose(slopes, expected, rtol=0, atol=1e-8, err_msg=name)


@everywhere
def test_the_gradient_of_the_sink(pattern, m, n):
    q, k, v, d_out, d_lse = arrays(m, n)
    acsr, mask = pattern.acsr(m, n), pattern.to_dense(m, n)
    for softcap in (None, 2.0):
        around = [Scoring(0.5, softcap, 0.1, sink=0.3 + by) for by in (-1e-5, 0.0, 1e-5)]
        below, _, above = (loss(mask, (q, k, v), (d_out, d_lse), scoring) for scoring in around)
        got = backward(acsr, (q, k, v), d_out, d_lse, around[1]).d_sink
        assert got == pytest.approx((above - below) / 2e-5, abs=1e-8)
    assert backward(acsr, (q, k, v), d_out, d_lse, PLAIN).d_sink == 0.0


@every_way
def test_rows_without_keys(scoring):
    pattern, m = weft.padding(4, rows=True), 9
    q, k, v, d_out, d_lse = arrays(m, m)
    acsr = pattern.acsr(m)
    out, lse = forward(acsr, q, k, v, scoring)
    assert (out[4:] == 0).all() and (lse[4:] == (-np.inf if scoring.sink is None else scoring.sink)).all()
    got = backward(acsr, (q, k, v), d_out, d_lse, scoring)
    assert (got.dq[4:] == 0).all() and (got.dk[4:] == 0).all() and (got.dv[4:] == 0).all()
    assert np.abs(got.dq[:4]).min() > 0 and np.abs(got.dv[:4]).min() > 0


def test_rows_without_keys_reach_only_the_sink():
    q, k, v, d_out, d_lse = arrays(5, 4)
    got = backward(weft.nothing().acsr(5, 4), (q, k, v), d_out, d_lse, SCORINGS["sink"])
    assert got.d_sink == pytest.approx(d_lse.sum())
    assert not got.dq.any() and not got.dk.any() and not got.dv.any()


def test_keys_that_nobody_sees_have_no_influence():
    q, k, v, d_out, d_lse = arrays(6, 9)
    acsr = weft.prefix(5).acsr(6, 9)
    before = forward(acsr, q, k, v, SCORINGS["all"])
    k[5:], v[5:] = np.nan, np.nan
    after = forward(acsr, q, k, v, SCORINGS["all"])
    for x, y in zip(before, after, strict=True):
        np.testing.assert_array_equal(x, y)
    got = backward(acsr, (q, k, v), d_out, d_lse, SCORINGS["all"])
    assert np.isfinite(got.dq).all() and (got.dk[5:] == 0).all() and (got.dv[5:] == 0).all()


def test_large_scores_do_not_overflow():
    q, k, v, d_out, d_lse = arrays(6, 6)
    acsr = weft.causal().acsr(6)
    out, lse = forward(acsr, 1e3 * q, k, v, Scoring(1.0, sink=900.0))
    expected = dense_attention(weft.causal().to_dense(6), 1e3 * q, k, v, Scoring(1.0, sink=900.0))
    np.testing.assert_allclose(out, expected[0], atol=1e-9)
    np.testing.assert_allclose(lse, expected[1], rtol=1e-13)
    assert np.isfinite(backward(acsr, (1e3 * q, k, v), d_out, d_lse, Scoring(1.0)).dq).all()


def test_alibi_counts_from_original_indices():
    acsr = weft.window(1, 1).acsr(3)
    q, k, v = np.zeros((3, 2)), np.zeros((3, 2)), np.eye(3)
    _, lse = forward(acsr, q, k, v, Scoring(1.0, slope=0.5))
    np.testing.assert_allclose(np.exp(lse), [1 + np.exp(-0.5), 1 + 2 * np.exp(-0.5), 1 + np.exp(-0.5)])
    _, lse = forward(acsr, q, k, v, Scoring(1.0, slope=0.5, shift=1))
    np.testing.assert_allclose(np.exp(lse)[0], np.exp(-0.5) + 1)


def test_softcap_comes_before_alibi():
    acsr = weft.full().acsr(1, 2)
    q, k, v = np.ones((1, 1)), np.full((2, 1), 100.0), np.eye(2)
    _, lse = forward(acsr, q, k, v, Scoring(1.0, softcap=3.0, slope=10.0))
    np.testing.assert_allclose(lse, np.logaddexp(3.0, 3.0 - 10.0))


def test_a_sink_of_minus_infinity_is_no_sink():
    q, k, v, *_ = arrays(5, 4)
    acsr = weft.causal(offset=-2, align="top-left").acsr(5, 4)  # rows 0 and 1 have no keys
    out, lse = forward(acsr, q, k, v, Scoring(0.3, sink=-np.inf))
    expected_out, expected_lse = forward(acsr, q, k, v, PLAIN)
    np.testing.assert_allclose(out, expected_out, atol=1e-13)
    np.testing.assert_array_equal(lse, expected_lse)
