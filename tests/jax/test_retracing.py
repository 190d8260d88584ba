"""Planned masks as arguments: windows, offsets and bounds of documents are data, and retrace nothing."""

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed")
jnp = jax.numpy

import weft
import weft.jax
from weft.errors import InputError

M = 256
SHAPE = jax.ShapeDtypeStruct((1, M, 2, 8), jnp.float32)


def arrays(seed=0):
    rng = np.random.default_rng(seed)
    return [jnp.asarray(rng.normal(size=SHAPE.shape), jnp.float32) for _ in range(3)]


def dense(q, k, v, mask):
    return jax.nn.dot_product_attention(q, k, v, mask=jnp.asarray(mask.to_dense(M))[None, None])


def counted(masks, like=None):
    """How often a jitted gradient is traced over some masks, each planned; results are held against dense ones."""
    traces = []

    @jax.jit
    def step(q, k, v, mask):
        traces.append(1)
        return jax.value_and_grad(lambda q: weft.jax.attention(q, k, v, mask).sum())(q)

    q, k, v = arrays()
    want = jax.jit(jax.value_and_grad(lambda q, k, v, live: jax.nn.dot_product_attention(q, k, v, mask=live).sum()))
    for mask in masks:
        got = step(q, k, v, weft.jax.plan(mask, SHAPE, SHAPE, SHAPE, like=like))
        live = jnp.asarray(mask.to_dense(M))
        live = live if live.ndim == 4 else live[None, None]
        for a, b in zip(got, want(q, k, v, live), strict=True):
            np.testing.assert_allclose(a, b, atol=2e-4)
    return len(traces)


def test_five_windows_are_one_trace():
    assert counted([weft.window(left=w, right=w) for w in (33, 36, 40, 45, 47)]) == 1


def test_five_offsets_are_one_trace():
    assert counted([weft.causal(offset=o) & weft.window(left=40, right=90) for o in (0, 1, 2, 4, 6)]) == 1


def test_five_splits_of_documents_are_one_trace():
    splits = [(64, 64, 64, 64), (60, 70, 61, 65), (256,), (1, 200, 3, 52), (16,) * 16]
    assert counted([weft.documents(split) & weft.causal() for split in splits]) == 1


def test_windows_that_differ_much_are_one_trace_when_asked_for_like_one():
    windows = [weft.window(left=left, right=3) for left in (1, 30, 100, 250)]
    first = weft.jax.plan(windows[2], SHAPE, SHAPE, SHAPE)
    assert counted(windows, like=first) == 1


def test_heads_dealt_otherwise_are_one_trace():
    local, wide = weft.window(left=20), weft.causal()
    assert counted([weft.per_head([local, wide]), weft.per_head([wide, local])]) == 1


def test_batch_rows_of_documents_are_one_trace():
    splits = [[(64, 192), (100, 156)], [(70, 186), (120, 136)]]
    masks = [weft.per_batch([weft.documents(one) & weft.causal() for one in rows]) for rows in splits]
    shape = jax.ShapeDtypeStruct((2, M, 2, 8), jnp.float32)
    first, second = (weft.jax.plan(mask, shape, shape, shape).structure for mask in masks)
    assert first == second


def test_a_planned_mask_that_is_closed_over_is_a_constant():
    mask = weft.window(left=20, right=3)
    q, k, v = arrays()
    planned = weft.jax.plan(mask, q, k, v)
    got = jax.jit(lambda q, k, v: weft.jax.attention(q, k, v, planned))(q, k, v)
    np.testing.assert_allclose(got, dense(q, k, v, mask), atol=2e-6)


def test_layers_with_masks_of_their_own_are_scanned_over():
    masks = [weft.window(left=w, right=w) for w in (33, 40, 47)]
    q, k, v = arrays()
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *(weft.jax.plan(mask, q, k, v) for mask in masks))
    out, _ = jax.lax.scan(lambda x, mask: (weft.jax.attention(x, k, v, mask), None), q, stacked)
    want = q
    for mask in masks:
        want = dense(want, k, v, mask)
    np.testing.assert_allclose(out, want, atol=2e-6)


def test_a_plan_serves_other_batches_heads_and_dtypes():
    planned = weft.jax.plan(weft.causal(), SHAPE, SHAPE, SHAPE)
    rng = np.random.default_rng(0)
    q, k, v = (jnp.asarray(rng.normal(size=(3, M, h, 4)), jnp.float32) for h in (4, 1, 1))
    np.testing.assert_allclose(weft.jax.attention(q, k, v, planned), dense(q, k, v, weft.causal()), atol=2e-6)


def test_a_plan_for_another_length_is_refused_inside_jit():
    planned = weft.jax.plan(weft.causal(), SHAPE, SHAPE, SHAPE)
    short = [x[:, :100] for x in arrays()]
    with pytest.raises(InputError, match=r"planned for 256 queries.*100"):
        jax.jit(weft.jax.attention)(*short, planned)


def test_a_mapped_mask_is_refused_by_name():
    q, k, v = arrays()
    planned = weft.jax.plan(weft.causal(), q, k, v)
    two = jax.tree.map(lambda x: jnp.stack([x, x]), planned)
    with pytest.raises(weft.errors.UnsupportedError, match="vmap over a planned mask"):
        jax.vmap(lambda mask: weft.jax.attention(q, k, v, mask))(two)
