"""flax.nnx.MultiHeadAttention with weft's attention_fn, and a small GPT that is trained with it."""

from types import SimpleNamespace

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed")
nnx = pytest.importorskip("flax.nnx", reason="flax is not installed")
optax = pytest.importorskip("optax", reason="optax is not installed")
jnp = jax.numpy

import weft
import weft.jax
from weft.errors import InputError, OptionError, UnsupportedError
from weft.jax.nnx import attention_fn
from weft.testing.refusals import refuse

T, FEATURES, HEADS = 64, 16, 2


def layer(**how):
    return nnx.MultiHeadAttention(HEADS, FEATURES, decode=False, rngs=nnx.Rngs(0), **how)


def tokens(*lead):
    return jnp.asarray(np.random.default_rng(0).normal(size=(*lead, T, FEATURES)), jnp.float32)


@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
def test_a_pattern_beside_the_mask_it_says(lead):
    pattern = weft.causal() & weft.window(left=9)
    live = jnp.broadcast_to(jnp.asarray(pattern.to_dense(T)), (*lead, 1, T, T))
    got = layer(attention_fn=attention_fn(pattern))(tokens(*lead))
    np.testing.assert_allclose(got, layer()(tokens(*lead), mask=live), atol=1e-5)


def test_the_mask_of_the_call():
    x, pattern = tokens(2), weft.chunks(16)
    live = jnp.asarray(pattern.to_dense(T))[None, None]
    want = layer()(x, mask=live, is_causal=True)
    ours = layer(attention_fn=attention_fn())
    shape = jax.ShapeDtypeStruct((2, T, HEADS, FEATURES // HEADS), jnp.float32)
    planned = weft.jax.plan(pattern & weft.causal(), shape, shape, shape)
    for got in (
        ours(x, mask=pattern, is_causal=True), ours(x, mask=live, is_causal=True), ours(x, mask=planned),
        nnx.jit(lambda layer, x, mask: layer(x, mask=mask))(ours, x, planned),
    ):  # fmt: skip
        np.testing.assert_allclose(got, want, atol=1e-5)
    np.testing.assert_allclose(ours(x), layer()(x), atol=1e-5)


def test_keys_of_their_own_shared_heads_and_narrow_types():
    x, y = tokens(2), tokens(2)[:, :40]
    how = {"num_kv_heads": 1, "dtype": jnp.bfloat16}
    got = layer(attention_fn=attention_fn(weft.full()), **how)(x, y)
    want = layer(num_kv_heads=1)(x, y)
    assert got.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(got, np.float32), want, atol=3e-2)


def test_options_reach_attention():
    x, sinks = tokens(2), jnp.asarray([0.5, 2.0])
    got = layer(attention_fn=attention_fn(weft.causal(), softcap=3.0, sinks=sinks))
    other = layer(attention_fn=attention_fn(weft.causal()))
    assert not np.allclose(got(x), other(x), atol=1e-3)


def test_dropout_in_evaluation_is_no_dropout():
    got = layer(attention_fn=attention_fn(weft.causal()), dropout_rate=0.5)(tokens(2), deterministic=True)
    np.testing.assert_array_equal(got, layer(attention_fn=attention_fn(weft.causal()))(tokens(2)))


def test_dropout_in_training_follows_the_key():
    made = layer(attention_fn=attention_fn(weft.causal()), dropout_rate=0.5, broadcast_dropout=False)
    keys = jax.random.key(1), jax.random.key(1), jax.random.key(2)
    first, again, other = (made(tokens(2), deterministic=False, rngs=nnx.Rngs(dropout=key)) for key in keys)
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other, atol=1e-3)


def test_a_bias_is_that_of_flax():
    q, k, v = (tokens(2).reshape(2, T, HEADS, -1) * scale for scale in (1, 2, 3))
    bias = jnp.asarray(np.random.default_rng(1).normal(size=(2, HEADS, T, T)), jnp.float32)
    got, want = (attend(q, k, v, bias=bias) for attend in (attention_fn(), nnx.dot_product_attention))
    np.testing.assert_allclose(got, want, atol=1e-5)


REFUSALS = {
    "dropout": (
        lambda: layer(attention_fn=attention_fn(), dropout_rate=0.5)(
            tokens(2), deterministic=False, rngs=nnx.Rngs(dropout=1)
        ),
        UnsupportedError, ["dropout_rate=0.5", "broadcast_dropout=False"],
    ),
    "sown weights": (
        lambda: layer(attention_fn=attention_fn())(tokens(2), sow_weights=True), UnsupportedError, ["sow"],
    ),
    "a mask beside a pattern": (
        lambda: layer(attention_fn=attention_fn(weft.causal()))(tokens(2), mask=weft.full()), InputError, ["two masks"],
    ),
    "a planned mask made causal": (
        lambda: layer(attention_fn=attention_fn())(tokens(2), mask=weft.jax.plan(
            weft.full(), *[jax.ShapeDtypeStruct((T, 2, 8), jnp.float32)] * 3), is_causal=True),
        InputError, ["planned mask"],
    ),
    "a traced mask": (
        lambda: jax.jit(lambda m: layer(attention_fn=attention_fn())(tokens(2), mask=m))(jnp.ones((T, T), bool)),
        InputError, ["traced"],
    ),
    "an unknown keyword": (
        lambda: attention_fn()(*[jnp.ones((T, 2, 8))] * 3, input_positions=jnp.arange(T)), UnsupportedError,
        ["input_positions"],
    ),
    "an unknown option": (lambda: attention_fn(weft.causal(), window=3), OptionError, ["window"]),
    "an array for a pattern": (lambda: attention_fn(np.ones((T, T), bool)), InputError, ["attention_fn"]),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name):
    call, error, words = REFUSALS[name]
    refuse(call, error, words)


# ---- a small GPT -----------------------------------------------------------------------------------------------------
VOCABULARY, BATCH, STEPS = 32, 4, 50


class Block(nnx.Module):
    def __init__(self, attend, rngs):
        self.one, self.two = (nnx.LayerNorm(FEATURES, rngs=rngs) for _ in range(2))
        self.attention = nnx.MultiHeadAttention(HEADS, FEATURES, decode=False, rngs=rngs, attention_fn=attend)
        self.up = nnx.Linear(FEATURES, 4 * FEATURES, rngs=rngs)
        self.down = nnx.Linear(4 * FEATURES, FEATURES, rngs=rngs)

    def __call__(self, x, mask):
        x = x + self.attention(self.one(x), mask=mask)
        return x + self.down(nnx.gelu(self.up(self.two(x))))


class Gpt(nnx.Module):
    def __init__(self, attend, rngs):
        self.embedding = nnx.Embed(VOCABULARY, FEATURES, rngs=rngs)
        self.places = nnx.Embed(T, FEATURES, rngs=rngs)
        self.local, self.wide = (Block(attend, rngs) for _ in range(2))
        self.head = nnx.Linear(FEATURES, VOCABULARY, rngs=rngs)

    def __call__(self, ids, masks):
        x = self.embedding(ids) + self.places(jnp.arange(T))
        return self.head(self.wide(self.local(x, masks[0]), masks[1]))


def batches():
    """Packed documents that count upwards from a start of their own, split anew at every step."""
    rng = np.random.default_rng(0)
    for _ in range(STEPS):
        cuts = np.sort(rng.choice(np.arange(1, T), 3, replace=False))
        lengths = np.diff(np.concatenate([[0], cuts, [T]])).tolist()
        starts = rng.integers(VOCABULARY, size=(BATCH, 4))
        ids = np.concatenate([s[:, None] + np.arange(n) for s, n in zip(starts.T, lengths, strict=True)], axis=1)
        yield jnp.asarray(ids % VOCABULARY), lengths


def masks_of(lengths):
    packed = weft.documents(lengths) & weft.causal()
    return packed & weft.window(left=7), packed


def train(attend, prepare):
    model = Gpt(attend, nnx.Rngs(1))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    traces = []

    @nnx.jit
    def step(model, optimizer, ids, masks):
        traces.append(1)

        def loss(model):
            logits = model(ids, masks)[:, :-1]
            return optax.softmax_cross_entropy_with_integer_labels(logits, ids[:, 1:]).mean()

        value, grads = nnx.value_and_grad(loss)(model)
        optimizer.update(model, grads)
        return value

    losses = [float(step(model, optimizer, ids, prepare(masks_of(lengths)))) for ids, lengths in batches()]
    return SimpleNamespace(losses=np.asarray(losses), traces=len(traces))


def test_a_small_gpt_trains_as_with_the_dense_mask():
    shape = jax.ShapeDtypeStruct((BATCH, T, HEADS, FEATURES // HEADS), jnp.float32)
    ours = train(attention_fn(), lambda masks: tuple(weft.jax.plan(mask, shape, shape, shape) for mask in masks))
    dense = train(nnx.dot_product_attention, lambda masks: tuple(jnp.asarray(m.to_dense(T))[None, None] for m in masks))
    np.testing.assert_allclose(ours.losses, dense.losses, rtol=2e-3)
    assert ours.losses[-1] < 0.5 * ours.losses[0]  # it learns
    assert ours.traces == 1  # every step has other documents
