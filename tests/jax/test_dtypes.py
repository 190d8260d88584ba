"""Every dtype, with x64 on and off, by the one policy of tolerance; and what memory a call takes."""

import re

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed")
jnp = jax.numpy

from tests.jax.compare import enable_x64, make, results, truth

import weft
import weft.jax
from weft.testing.tolerance import assert_close

M = 150
MASK = weft.causal() & weft.window(left=40)
NAMES = ("out", "lse", "dq", "dk", "dv", "dsinks")


def plain(made):
    """Dense attention in the dtype of the inputs, as anyone would write it."""
    live = jnp.asarray(made.pattern.to_dense(M))
    cap, group = made.options.get("softcap"), made.q.shape[1] // made.k.shape[1]

    def loss(q, k, v, sinks):
        k, v = (jnp.repeat(x, group, axis=1) for x in (k, v))
        s = jnp.einsum("bhqd,bhkd->bhqk", q, k) * jnp.asarray(q.shape[-1] ** -0.5, q.dtype)
        s = s if cap is None else jnp.tanh(s / cap) * cap
        s = jnp.where(live, s, -jnp.inf)
        s = jnp.concatenate([s, jnp.broadcast_to(sinks.astype(s.dtype)[:, None, None], (*s.shape[:3], 1))], -1)
        lse = jax.nn.logsumexp(s, -1)
        out = jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(s, -1)[..., :-1], v)
        total = (out * made.dout).sum(dtype=jnp.float32) + (lse * jnp.asarray(made.dlse, lse.dtype)).sum()
        return total, (out, lse)

    (_, made_of), grads = jax.jit(jax.value_and_grad(loss, (0, 1, 2, 3), has_aux=True))(
        made.q, made.k, made.v, jnp.asarray(made.options["sinks"], made.q.dtype)
    )
    return dict(zip(NAMES, (*made_of, *grads), strict=True))


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_dtypes_by_the_policy(dtype, x64):
    with enable_x64(x64):
        made = make(MASK, M, M, dtype=dtype, dims=(16, 8), sinks=True, softcap=4.0)
        got, want, other = results(made, layout="bshd"), truth(made), plain(made)
        for name in NAMES:
            # dsinks are given in float32, whatever q is: plain ones are of the inputs' dtype
            assert_close(name, got[name], want[name], other[name])


def test_float64_stays_float64_and_without_x64_becomes_float32():
    made = make(MASK, M, M, dtype="float32")
    x = [np.asarray(y, np.float64) for y in (made.q, made.k, made.v)]
    with enable_x64(True):
        out, lse = weft.jax.attention(*x, MASK, layout="bhsd", return_lse=True)
        assert out.dtype == lse.dtype == jnp.float64
        narrow = weft.jax.attention(*(y.astype(np.float32) for y in x), MASK, layout="bhsd", return_lse=True)
        assert narrow[0].dtype == narrow[1].dtype == jnp.float32
    with enable_x64(False):
        out, lse = weft.jax.attention(*x, MASK, layout="bhsd", return_lse=True)
        assert out.dtype == lse.dtype == jnp.float32


@pytest.mark.parametrize("x64", [False, True])
def test_planned_masks_are_of_32_bits(x64):
    with enable_x64(x64):
        shape = jax.ShapeDtypeStruct((1, 64, 2, 8), jnp.float32)
        planned = weft.jax.plan(weft.longformer(4, 2), shape, shape, shape)
        assert {str(x.dtype) for x in jax.tree.leaves(planned)} == {"int32"}
        run = jax.grad(lambda q, mask: weft.jax.attention(q, q, q, mask).sum())
        jaxpr = str(jax.make_jaxpr(run)(jnp.zeros(shape.shape, jnp.float32), planned))
        assert re.findall(r"[fi]64\[\d+[^\]]*\]", jaxpr) == []  # scalars that are converted at once apart


def test_scores_far_apart_and_large_sinks_lose_nothing():
    """Large scores: the maximum is taken off; a row of one key has its value exactly, a huge sink the whole."""
    made = make(weft.window(0, 0), 40, 40, dtype="float32", scale=1e4)
    np.testing.assert_array_equal(results(made)["out"], np.repeat(made.v, 2, axis=1))
    sunk = make(weft.window(0, 0), 40, 40, dtype="float32", sinks=np.full(4, 1e4))
    assert not results(sunk)["out"].any()
    low = make(weft.window(3, 3), 40, 40, dtype="float32", sinks=np.full(4, -np.inf))
    np.testing.assert_array_equal(results(low)["out"], results(make(weft.window(3, 3), 40, 40, dtype="float32"))["out"])
    assert not results(low)["dsinks"].any()


def temporary(m, gradients):
    x = jax.ShapeDtypeStruct((1, m, 1, 16), jnp.float32)
    planned = weft.jax.plan(weft.causal() & weft.window(left=100), x, x, x)

    def run(q, k, v):
        return weft.jax.attention(q, k, v, planned).sum()

    function = jax.grad(run, (0, 1, 2)) if gradients else run
    return jax.jit(function).lower(x, x, x).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("gradients", [False, True])
def test_memory_grows_with_the_tokens(gradients):
    small, large = (temporary(m, gradients) for m in (4096, 16_384))
    assert large < 16_384 * 16 * 4 * 20  # twenty arrays as large as q, where the pairs would take a gibibyte
    assert large < 4.5 * small
