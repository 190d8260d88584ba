"""weft.jax.dot_product_attention beside jax.nn's own, where both have a meaning."""

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed")
jnp = jax.numpy

import weft.jax
from weft.errors import InputError, OptionError
from weft.jax import dot_product_attention
from weft.testing.refusals import refuse

B, T, N, K, H = 2, 40, 4, 2, 8


def arrays(t=T, s=T, dtype=jnp.float32, hv=H):
    rng = np.random.default_rng(0)
    shapes = (B, t, N, H), (B, s, K, H), (B, s, K, hv)
    return [jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes]


def live(t, s, *, left=None, right=None, causal=False):
    q, k = np.arange(t)[:, None], np.arange(s)
    found = np.ones((t, s), bool)
    if left is not None:
        found &= (k >= q - left) & (k <= q + right)
    return found & (k <= q) if causal else found


def close(got, want, rows=None):
    """Equal, at those (B, T) rows that see any key: jax.nn averages all values in the others."""
    some = np.ones((B, T), bool) if rows is None else rows
    np.testing.assert_allclose(np.asarray(got)[some], np.asarray(want)[some], atol=2e-6)
    assert (np.asarray(got)[~some] == 0).all()


WINDOWS = [3, (3, 0), (0, 3), (5, 2)]


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("size", WINDOWS)
def test_windows_are_what_the_documentation_says(size, is_causal):
    """Without is_causal too, where one implementation of jax.nn attends to the future (jax#39576)."""
    x = arrays()
    got = dot_product_attention(*x, local_window_size=size, is_causal=is_causal)
    close(got, jax.nn.dot_product_attention(*x, local_window_size=size, is_causal=is_causal))
    left, right = (size, size) if isinstance(size, int) else size
    mask = jnp.asarray(live(T, T, left=left, right=right, causal=is_causal))[None, None]
    close(got, jax.nn.dot_product_attention(*x, mask=mask))


def test_lengths_of_queries_and_keys():
    x = arrays()
    how = {
        "query_seq_lengths": jnp.asarray([40, 13]),
        "key_value_seq_lengths": jnp.asarray([25, 40]),
        "is_causal": True,
    }
    rows = np.arange(T) < np.asarray([[40], [13]])
    close(dot_product_attention(*x, **how), jax.nn.dot_product_attention(*x, **how), rows)
    same = {"key_value_seq_lengths": np.asarray([25, 25], np.int32)}
    close(dot_product_attention(*x, **same), jax.nn.dot_product_attention(*x, **same))


def test_lengths_of_nothing():
    got = dot_product_attention(*arrays(), query_seq_lengths=[0, 40], key_value_seq_lengths=[40, 0])
    assert not np.asarray(got).any()


@pytest.mark.parametrize("t, s", [(40, 40), (20, 40), (40, 20)])
def test_more_keys_than_queries_count_from_the_first(t, s):
    x = arrays(t, s)
    got = dot_product_attention(*x, is_causal=True, local_window_size=(6, 1))
    want = jax.nn.dot_product_attention(*x, is_causal=True, local_window_size=(6, 1))
    rows = live(t, s, left=6, right=1, causal=True).any(axis=1)
    np.testing.assert_allclose(got[:, rows], want[:, rows], atol=2e-6)
    assert not np.asarray(got)[:, ~rows].any()


@pytest.mark.parametrize("shape", [(1, 1, T, T), (T, T), (N, T, T), (B, 1, T, T), (B, N, T, T), (B, 1, 1, T)])
def test_boolean_masks(shape):
    x = arrays()
    mask = np.random.default_rng(1).random(shape) < 0.4
    mask[..., 0] = True
    got = dot_product_attention(*x, mask=jnp.asarray(mask))
    close(got, jax.nn.dot_product_attention(*x, mask=jnp.asarray(mask).reshape((1,) * (4 - mask.ndim) + mask.shape)))


def test_a_mask_beside_other_arguments():
    x = arrays()
    mask = jnp.asarray(live(T, T, left=9, right=9))[None, None]
    how = {"is_causal": True, "key_value_seq_lengths": jnp.asarray([30, 40]), "scale": 0.2}
    close(
        dot_product_attention(*x, mask=mask, **how),
        jax.nn.dot_product_attention(*x, mask=mask, **how),
        np.asarray(
            live(T, T, left=9, causal=True, right=9)[None] & (np.arange(T) < np.asarray([30, 40])[:, None, None])
        ).any(-1),
    )


def test_segments():
    x = arrays()
    ids = np.repeat([[1, 2, 3], [4, 4, 7]], [10, 13, 17], axis=1)
    mask = jnp.asarray((ids[:, :, None] == ids[:, None, :]) & live(T, T, causal=True))[:, None]
    got = dot_product_attention(*x, segment_ids=jnp.asarray(ids), is_causal=True)
    close(got, jax.nn.dot_product_attention(*x, mask=mask))


def test_residuals_have_no_gradient_and_key_s_dtype():
    x = arrays(dtype=jnp.bfloat16)
    out, residual = dot_product_attention(*x, is_causal=True, return_residual=True)
    want = jax.nn.dot_product_attention(*x, is_causal=True, return_residual=True)[1]
    assert residual.dtype == jnp.bfloat16
    assert residual.shape == want.shape == (B, T, N)
    np.testing.assert_allclose(residual.astype(jnp.float32), want.astype(jnp.float32), atol=2e-2)
    grad = jax.grad(lambda q: dot_product_attention(q, *x[1:], return_residual=True)[1].astype(jnp.float32).sum())(x[0])
    assert not np.asarray(grad, np.float32).any()
    assert out.dtype == jnp.bfloat16


def test_soft_cap_sinks_wide_values_and_no_batch():
    x = arrays(hv=3)
    sinks = jnp.asarray([0.0, 1.0, -1.0, 2.0])
    got = dot_product_attention(*x, logits_soft_cap=2.0, sinks=sinks, is_causal=True)
    want = weft.jax.attention(*x, weft.causal(), softcap=2.0, sinks=sinks)
    np.testing.assert_array_equal(got, want)
    one = dot_product_attention(*(y[0] for y in x), logits_soft_cap=2.0, sinks=sinks, is_causal=True)
    np.testing.assert_allclose(one, got[0], atol=1e-6)


@pytest.mark.parametrize("shape", [(1, 1, T, T), (B, N, T, T), (N, T, T), (B, N, 1, T)], ids=str)
def test_bias(shape):
    """With its gradient, under jit."""
    x, bias = arrays(), jnp.asarray(np.random.default_rng(4).normal(size=shape), jnp.float32)

    def run(attend):
        def loss(bias, *y):
            return (attend(*y, bias, is_causal=True) ** 2).sum()

        return jax.jit(jax.grad(loss, (0, 1, 2, 3)))(bias, *x)

    for got, want in zip(run(dot_product_attention), run(jax.nn.dot_product_attention), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-4)


def test_gradients_under_jit():
    x = arrays()
    how = {"is_causal": True, "local_window_size": (7, 0)}

    def run(attend):
        return jax.jit(jax.grad(lambda *y: (attend(*y, **how) ** 2).sum(), (0, 1, 2)))(*x)

    for got, want in zip(run(dot_product_attention), run(jax.nn.dot_product_attention), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5)


REFUSALS = {
    "a bias of a number": (lambda x: dot_product_attention(*x, 2.0), InputError, ["float"]),
    "traced mask": (
        lambda x: jax.jit(lambda m: dot_product_attention(*x, mask=m))(jnp.ones((1, 1, T, T), bool)), InputError,
        ["mask is traced", "weft.jax.plan"],
    ),
    "traced lengths": (
        lambda x: jax.jit(lambda n: dot_product_attention(*x, key_value_seq_lengths=n))(jnp.asarray([3, 4])),
        InputError, ["key_value_seq_lengths is traced"],
    ),
    "traced is_causal": (
        lambda x: jax.jit(lambda c: dot_product_attention(*x, is_causal=c))(True), OptionError, ["static_argnames"],
    ),
    "a float mask": (lambda x: dot_product_attention(*x, mask=jnp.zeros((1, 1, T, T))), InputError, ["not boolean"]),
    "a mask of another shape": (
        lambda x: dot_product_attention(*x, mask=jnp.ones((1, 3, T, T), bool)), InputError,
        ["broadcasts to (2, 4, 40, 40)"],
    ),
    "lengths of another batch": (
        lambda x: dot_product_attention(*x, query_seq_lengths=[3, 4, 5]), InputError, ["2 batch rows"],
    ),
    "negative lengths": (lambda x: dot_product_attention(*x, query_seq_lengths=[3, -4]), InputError, ["from 0 on"]),
    "a negative window": (lambda x: dot_product_attention(*x, local_window_size=(-1, 0)), OptionError, ["(-1, 0)"]),
    "segments of keys alone": (
        lambda x: dot_product_attention(*x, segment_ids=jnp.zeros((2, 7), int)), InputError, ["segment_ids"],
    ),
    "cudnn": (lambda x: dot_product_attention(*x, implementation="cudnn"), OptionError, ["'cudnn'", "'xla'"]),
    "a list": (lambda x: dot_product_attention([1.0], *x[1:]), InputError, ["query is no array"]),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name):
    call, error, words = REFUSALS[name]
    refuse(lambda: call(arrays()), error, words)
