"""jit, eager, grad, vmap, scan and checkpoint, alone and nested, beside dense attention by hand."""

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed")
jnp = jax.numpy

import weft
import weft.jax
from weft.errors import UnsupportedError

M = 70
MASKS = {
    "window": weft.causal() & weft.window(left=12),
    "per_head": weft.per_head([weft.causal(), weft.window(3, 5)]),
    "per_batch": weft.per_batch([weft.chunks(9), weft.causal()]),
}


def arrays(*lead, seed=0):
    rng = np.random.default_rng(seed)
    return tuple(jnp.asarray(rng.normal(size=(*lead, 2, M, 2, 8)), jnp.float32) for _ in range(3))


def dense(mask):
    live = jnp.asarray(mask.to_dense(M))
    live = live if live.ndim == 4 else live[None, None]
    return lambda q, k, v: jax.nn.dot_product_attention(q, k, v, mask=live)


def ours(mask):
    return lambda q, k, v: weft.jax.attention(q, k, v, mask)


def gradient(attend):
    return jax.grad(lambda *x: (attend(*x) ** 2).sum(), (0, 1, 2))


def close(got, want):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)


@pytest.mark.parametrize("name", MASKS)
def test_eager_and_jit(name):
    x, one, two = arrays(), ours(MASKS[name]), dense(MASKS[name])
    close(one(*x), two(*x))
    close(jax.jit(one)(*x), two(*x))
    close(gradient(one)(*x), gradient(two)(*x))


@pytest.mark.parametrize("name", MASKS)
def test_vmap_and_gradients_under_it(name):
    x, one, two = arrays(3), ours(MASKS[name]), dense(MASKS[name])
    close(jax.vmap(one)(*x), jax.vmap(two)(*x))
    close(jax.jit(jax.vmap(gradient(one)))(*x), jax.vmap(gradient(two))(*x))


def test_vmap_of_vmap_and_of_some_arguments():
    (q, k, v), one, two = arrays(2, 2), ours(MASKS["window"]), dense(MASKS["window"])
    close(jax.vmap(jax.vmap(one))(q, k, v), jax.vmap(jax.vmap(two))(q, k, v))
    some = {"in_axes": (0, None, 1)}
    x = q[0], k[0, 0], jnp.moveaxis(v[0], 0, 1)
    close(jax.vmap(one, **some)(*x), jax.vmap(two, **some)(*x))
    close(jax.vmap(gradient(one), **some)(*x), jax.vmap(gradient(two), **some)(*x))
    close(gradient(jax.vmap(one, **some))(*x), gradient(jax.vmap(two, **some))(*x))


def test_vmap_over_sinks_and_slopes():
    (q, k, v), rows = arrays(), jnp.asarray(np.random.default_rng(0).uniform(size=(3, 2)), jnp.float32)

    def one(sinks, slopes):
        return weft.jax.attention(q, k, v, MASKS["window"], sinks=sinks, alibi_slopes=slopes)

    got = jax.vmap(one)(rows, rows[::-1])
    close(got, jnp.stack([one(a, b) for a, b in zip(rows, rows[::-1], strict=True)]))


@pytest.mark.parametrize("policy", [None, jax.checkpoint_policies.dots_saveable])
def test_checkpoint(policy):
    x, one, two = arrays(), ours(MASKS["window"]), dense(MASKS["window"])
    close(jax.jit(gradient(jax.checkpoint(one, policy=policy)))(*x), gradient(two)(*x))


def test_scan_and_its_gradient():
    x, one, two = arrays(), ours(MASKS["window"]), dense(MASKS["window"])

    def repeated(attend):
        return lambda q, k, v: jax.lax.scan(lambda c, _: (attend(c, k, v), None), q, None, length=3)[0]

    close(jax.jit(gradient(repeated(one)))(*x), gradient(repeated(two))(*x))
    remat = jax.checkpoint(one)
    close(jax.jit(gradient(repeated(remat)))(*x), gradient(repeated(two))(*x))


def test_gradient_of_sinks_and_of_lse_alone():
    (q, k, v), sinks = arrays(), jnp.asarray([0.5, -1.0])

    def by_hand(q, sinks):
        s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * 8**-0.5
        s = jnp.where(jnp.asarray(MASKS["window"].to_dense(M)), s, -jnp.inf)
        s = jnp.concatenate([s, jnp.broadcast_to(sinks[None, :, None, None], (*s.shape[:3], 1))], -1)
        return jax.nn.logsumexp(s, -1).swapaxes(1, 2)

    def of_weft(q, sinks):
        return weft.jax.attention(q, k, v, MASKS["window"], sinks=sinks, return_lse=True)[1]

    weights = jnp.asarray(np.random.default_rng(1).normal(size=(2, M, 2)), jnp.float32)
    got, want = (jax.grad(lambda *x, f=f: (f(*x) * weights).sum(), (0, 1))(q, sinks) for f in (of_weft, by_hand))
    close(got, want)


def test_gradients_are_the_same_bits_every_time():
    x, run = arrays(), jax.jit(gradient(ours(MASKS["window"])))
    for a, b in zip(run(*x), run(*x), strict=True):
        np.testing.assert_array_equal(a, b)


def test_layouts_and_arrays_without_a_batch():
    q, k, v = arrays()
    mask, turned = MASKS["window"], [x.swapaxes(1, 2) for x in (q, k, v)]
    out, lse = weft.jax.attention(q, k, v, mask, return_lse=True)
    other, other_lse = weft.jax.attention(*turned, mask, return_lse=True, layout="bhsd")
    close((out, lse), (other.swapaxes(1, 2), other_lse.swapaxes(1, 2)))
    one, one_lse = weft.jax.attention(q[0], k[0], v[0], mask, return_lse=True)
    close((out[0], lse[0]), (one, one_lse))


def test_second_derivatives_are_refused():
    q, k, v = arrays()
    with pytest.raises(UnsupportedError, match="second derivative"):
        jax.grad(lambda q: gradient(ours(MASKS["window"]))(q, k, v)[0].sum())(q)


def test_gradients_of_slopes_unless_they_are_stopped():
    (q, k, v), slopes = arrays(), jnp.ones(2)

    def loss(q, slopes, stop):
        slopes = jax.lax.stop_gradient(slopes) if stop else slopes
        return weft.jax.attention(q, k, v, MASKS["window"], alibi_slopes=slopes).sum()

    assert jax.grad(loss, 1)(q, slopes, False).all()
    assert not jax.jit(jax.grad(loss, 1), static_argnums=2)(q, slopes, True).any()
    assert jax.grad(loss)(q, slopes, False).any()


LONG = {
    "window": weft.window(left=300, right=17),
    "documents": weft.documents([100, 700, 3, 477]) & weft.causal(),
    "longformer": weft.longformer(100, global_tokens=9, dilation=3),
    "bigbird": weft.bigbird(block=64, window=3, global_blocks=1, random=2, seed=0),
    "neighborhood": weft.neighborhood((32, 40), (11, 7)),
}


@pytest.mark.parametrize("name", LONG)
def test_many_tiles(name):
    """1,280 tokens: several tiles of queries, several chunks of keys, in float32."""
    mask, rng = LONG[name], np.random.default_rng(0)
    q, k, v, dout = (jnp.asarray(rng.normal(size=(1, 1280, h, 16)), jnp.float32) for h in (2, 1, 1, 2))
    live = jnp.asarray(mask.to_dense(1280))[None, None]

    def run(attend):
        out, gradients = jax.vjp(attend, q, k, v)
        return out, *gradients(dout)

    close(jax.jit(lambda: run(ours(mask)))(), run(lambda *x: jax.nn.dot_product_attention(*x, mask=live)))
