"""The equinox module."""

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed")
equinox = pytest.importorskip("equinox", reason="equinox is not installed")
jnp = jax.numpy

import weft
import weft.jax
from weft.errors import InputError, OptionError
from weft.jax.equinox import SparseAttention
from weft.testing.refusals import refuse

T = 40
MASK = weft.causal() & weft.window(left=9)


def arrays(*lead):
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.normal(size=(*lead, T, 2, 8)), jnp.float32) for _ in range(3)]


def test_one_sequence_a_batch_and_vmap():
    x, attend = arrays(3), SparseAttention(MASK)
    want = weft.jax.attention(*x, MASK)
    np.testing.assert_allclose(attend(*x), want, atol=1e-6)
    np.testing.assert_allclose(jax.vmap(attend)(*x), want, atol=1e-6)
    np.testing.assert_allclose(equinox.filter_jit(attend)(*(y[0] for y in x)), want[0], atol=1e-6)


def test_sinks_are_a_parameter():
    x, attend = arrays(3), SparseAttention(MASK, sinks=jnp.zeros(2), softcap=5.0)
    grads = equinox.filter_grad(lambda attend: attend(*x).sum())(attend)
    assert grads.sinks.shape == (2,)
    assert np.asarray(grads.sinks).any()
    want = jax.grad(lambda s: weft.jax.attention(*x, MASK, sinks=s, softcap=5.0).sum())(jnp.zeros(2))
    np.testing.assert_allclose(grads.sinks, want, atol=1e-6)


def test_planned_masks_are_kept_and_replaced_without_a_trace():
    x, traces = arrays(3), []

    @equinox.filter_jit
    def run(attend, q, k, v):
        traces.append(1)
        return attend(q, k, v)

    for split in ((10, 30), (20, 20)):
        mask = weft.documents(split)
        attend = SparseAttention(weft.jax.plan(mask, *x))
        np.testing.assert_allclose(run(attend, *x), weft.jax.attention(*x, mask), atol=1e-6)
    assert len(traces) == 1
    np.testing.assert_allclose(attend(*x, mask=weft.full()), weft.jax.attention(*x, weft.full()), atol=1e-6)


def test_refusals():
    refuse(lambda: SparseAttention(MASK, window=3), OptionError, ["window"])
    refuse(lambda: SparseAttention(MASK, softcap=-1.0), OptionError, ["softcap"])
    refuse(lambda: SparseAttention(jnp.ones((T, T), bool)), InputError, ["SparseAttention"])
