"""Score functions, biases, dropout, extra keys: beside three loops in float64, and under JAX's transformations."""

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed")
jnp = jax.numpy

from tests.jax.compare import check, enable_x64, make
from tests.tiers import sample

import weft
import weft.jax
from weft import bias
from weft.errors import AlignmentError, InputError, OptionError, UnsupportedError
from weft.score import Score
from weft.score.dropout import Dropout
from weft.testing.refusals import refuse

M = 50
MASK = weft.causal() & weft.window(left=30)


def drawn(*shape, seed=3):
    return np.random.default_rng(seed).normal(size=shape)


SLOPES = 0.1 * drawn(4)
OPTIONS = {
    "relative": {"bias": bias.relative(drawn(4, 21))},
    "relative, shared": {"bias": bias.relative(drawn(1, 21)), "softcap": 2.0},
    "buckets": {"bias": bias.buckets(drawn(8, 4), max_distance=20)},
    "dense": {"bias": bias.dense(drawn(2, 4, M, M))},
    "dense, shared": {"bias": bias.dense(drawn(1, M, M)), "sinks": True},
    "alibi": {"bias": bias.alibi(SLOPES)},
    "two": {"score": bias.relative(drawn(4, 21)), "bias": bias.alibi(SLOPES)},
    "a table times the score": {"score": Score("score * real0[h] + real1[b, q]", (drawn(4), drawn(2, M)))},
    "masks pairs": {"score": Score("where(k % 3 == 1, -inf, score)", ())},
    "by documents": {"score": Score("where(int0[q] == int0[k], score, score - real1[k])", (
        np.arange(M) // 7, drawn(M)))},
    "nonlinear": {"score": Score("tanh(score) + sin(real0[h] * score)", (drawn(4),))},
    "dropout": {"dropout": 0.3, "seed": 2**63 + 12345678901, "sinks": True},
    "dropout and bias": {"dropout": 0.5, "seed": 7, "bias": bias.relative(drawn(4, 21))},
}  # fmt: skip


@pytest.mark.parametrize("name", sample(OPTIONS, "relative", "a table times the score", "dropout and bias"))
def test_results_and_gradients(name):
    with enable_x64(True):
        check(make(MASK, M, M, **OPTIONS[name]), layout=("bshd", "bhsd")[len(name) % 2])


@pytest.mark.more
def test_heads_that_differ_under_a_bias():
    mask = weft.per_head([weft.causal(), weft.window(3, 3), weft.full(), weft.chunks(9)])
    with enable_x64(True):
        check(make(mask, M, M, bias=bias.alibi(SLOPES), dropout=0.25, seed=3))
        check(make(weft.bigbird(8), 90, 90, bias=bias.relative(drawn(4, 21))))


def arrays(dtype=np.float32, m=M):
    return [jnp.asarray(drawn(2, m, heads, 8, seed=i), dtype) for i, heads in enumerate((4, 2, 2))]


def attend(*x, mask=MASK, **options):
    return weft.jax.attention(*(x or arrays()), mask, **options)


def test_a_function_is_traced_and_its_arrays_learn():
    """What it captured, traced or not, is a table with a gradient; so is a factor without an index."""
    slopes, gain = jnp.asarray(drawn(4), jnp.float32), jnp.float32(0.7)

    def loss(slopes, gain):
        return attend(score=lambda s, b, h, q, k: s * gain - slopes[h] * abs(q - k)).sum()

    found = jax.jit(jax.grad(loss, (0, 1)))(slopes, gain)
    eager = jax.grad(loss, (0, 1))(slopes, gain)
    for at, (one, same) in enumerate(zip(found, eager, strict=True)):
        np.testing.assert_allclose(one, same, rtol=1e-3, atol=1e-2)
        step = 1e-2
        moved = [loss(*(x + sign * step * (i == at) * jnp.ones_like(x) for i, x in enumerate((slopes, gain))))
                 for sign in (1, -1)]  # fmt: skip
        np.testing.assert_allclose(one.sum(), (moved[0] - moved[1]) / (2 * step), rtol=2e-2)


def test_slopes_learn():
    slopes = jnp.asarray(drawn(4), jnp.float32)
    found = jax.grad(lambda s: attend(alibi_slopes=s).sum())(slopes)
    same = jax.grad(lambda s: attend(bias=bias.alibi(s)).sum())(slopes)
    np.testing.assert_array_equal(found, same)
    assert np.abs(np.asarray(found)).min() > 0


def test_an_array_is_a_bias():
    dense = jnp.asarray(drawn(1, 4, M, M), jnp.float32)
    np.testing.assert_array_equal(attend(bias=dense), attend(bias=bias.dense(dense)))


# ---- dropout ---------------------------------------------------------------------------------------------------------
def test_which_weights_go_is_the_law_for_every_kind_of_seed():
    """Of values that are one-hot, outputs show every weight."""
    n, seed = 40, 2**40 + 5
    q, k = jnp.zeros((2, n, 4, 8)), jnp.zeros((2, n, 2, 8))
    v = jnp.broadcast_to(jnp.eye(n)[None, :, None], (2, n, 2, n))
    kept = Dropout(0.25, seed).kept(*np.ix_(range(2), range(4), range(n), range(n))).swapaxes(1, 2)
    found = weft.jax.attention(q, k, v, weft.full(), dropout=0.25, seed=seed)
    np.testing.assert_array_equal(np.asarray(found) > 0, kept)
    with enable_x64(True):
        np.testing.assert_array_equal(attend(dropout=0.3, seed=jnp.int64(-5)), attend(dropout=0.3, seed=-5))
    np.testing.assert_array_equal(attend(dropout=0.3, seed=jnp.int32(-5)), attend(dropout=0.3, seed=-5))
    np.testing.assert_array_equal(attend(dropout=0.3, seed=np.array([9])), attend(dropout=0.3, seed=9))


def test_a_key_becomes_a_seed():
    key, raw = jax.random.key(3), jax.random.PRNGKey(3)
    bits = [int(x) for x in jax.random.bits(key, (2,), jnp.uint32)]
    want = attend(dropout=0.3, seed=bits[0] + (bits[1] << 32))
    np.testing.assert_array_equal(attend(dropout=0.3, seed=key), want)
    np.testing.assert_allclose(jax.jit(lambda key: attend(dropout=0.3, seed=key))(raw), want, atol=1e-6)


def test_mapped_calls_are_the_calls():
    """Over arrays, over keys, and over tables, with gradients of what is not mapped."""
    q, k, v = arrays()
    keys = jax.random.split(jax.random.key(0), 2)
    for run, over in (
        (lambda q: weft.jax.attention(q, k, v, MASK, dropout=0.3, seed=5), jnp.stack([q, 2 * q])),
        (lambda key: attend(dropout=0.3, seed=key), keys),
        (lambda table: attend(bias=bias.relative(table)), jnp.asarray(drawn(2, 4, 21), jnp.float32)),
    ):
        each = jnp.stack([run(x) for x in over])
        np.testing.assert_allclose(jax.vmap(run)(over), each, atol=2e-6)
    slopes = jnp.asarray(drawn(4), jnp.float32)
    of_slopes = jax.grad(lambda slopes, q: weft.jax.attention(q, k, v, MASK, alibi_slopes=slopes).sum())
    each = jnp.stack([of_slopes(slopes, x) for x in (q, 2 * q)])
    found = jax.vmap(of_slopes, (None, 0))(slopes, jnp.stack([q, 2 * q]))
    np.testing.assert_allclose(found, each, rtol=1e-4, atol=1e-4)


def test_divided_over_devices_as_on_one():
    """Batch rows and heads keep their numbers, and gradients of tables add over all of them."""
    from jax.sharding import AxisType, NamedSharding
    from jax.sharding import PartitionSpec as P

    mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    x, table = arrays(), jnp.asarray(drawn(4, 21), jnp.float32)

    def run(q, k, v, table):
        return attend(q, k, v, bias=bias.relative(table), dropout=0.3, seed=5)

    placed = [jax.device_put(one, NamedSharding(mesh, P("data", None, "model"))) for one in x]
    found = jax.jit(run)(*placed, table)
    assert found.sharding.spec == P("data", None, "model")
    np.testing.assert_allclose(found, run(*x, table), atol=2e-6)
    by = jax.grad(lambda *x: run(*x).sum(), (0, 3))
    for one, same in zip(jax.jit(by)(*placed, table), by(*x, table), strict=True):
        np.testing.assert_allclose(one, same, rtol=1e-4, atol=1e-4)


# ---- extra keys ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_extra_keys_are_keys_before_the_first(layout):
    """Results and gradients; queries that see nothing else see these."""
    turn = (lambda x: x) if layout == "bshd" else lambda x: x.swapaxes(1, 2)
    q, k, v = arrays()
    mask, e, sinks = MASK & weft.padding(30), 5, jnp.asarray(drawn(4), jnp.float32)
    extra = [jnp.asarray(drawn(2, e, 2, 8, seed=i), jnp.float32) for i in (7, 8)]
    every = weft.recognize(np.concatenate([np.ones((M, e), bool), mask.to_dense(M)], axis=1)).pattern

    def apart(q, k, v, ek, ev, sinks):
        given = [turn(x) for x in (q, k, v)]
        out, lse = weft.jax.attention(
            *given, mask, layout=layout, sinks=sinks, extra_keys=turn(ek), extra_values=turn(ev), return_lse=True
        )
        return turn(out), turn(lse) if layout == "bhsd" else lse

    def together(q, k, v, ek, ev, sinks):
        k, v = jnp.concatenate([ek, k], axis=1), jnp.concatenate([ev, v], axis=1)
        return weft.jax.attention(q, k, v, every, sinks=sinks, return_lse=True)

    def summed(run):
        def loss(*x):
            out, lse = run(*x)
            return jnp.sin(out).sum() + jnp.cos(lse).sum(), (out, lse)

        return jax.value_and_grad(loss, tuple(range(6)), has_aux=True)(q, k, v, *extra, sinks)

    for one, same in zip(jax.tree.leaves(summed(apart)), jax.tree.leaves(summed(together)), strict=True):
        np.testing.assert_allclose(one, same, rtol=1e-4, atol=1e-4)


# ---- what is refused -------------------------------------------------------------------------------------------------
REFUSALS = {
    "a score of text": (lambda: attend(score="score"), OptionError, ["str", "no function"]),
    "a branch": (lambda: attend(score=lambda s, b, h, q, k: s if s > 0 else -s), OptionError, ["where"]),
    "a bias of booleans": (lambda: attend(bias=np.ones((M, M), bool)), OptionError, ["mask"]),
    "a bias of another shape": (lambda: attend(bias=np.ones((3, M, M))), OptionError, ["(4, 50, 50)"]),
    "a table that ends": (lambda: attend(bias=Score("score + real0[q]", (np.ones(9),))), OptionError, ["beyond"]),
    "a list of slopes": (lambda: attend(bias=Score("score + real0[h]", ([1.0] * 4,))), OptionError, ["no array"]),
    "a table of another kind": (
        lambda: attend(bias=Score("score + real0[h]", (np.ones(4, np.int32),))), OptionError, ["floating"],
    ),
    "a bias without an alignment": (
        lambda: weft.jax.attention(*arrays()[:1], *(x[:, :9] for x in arrays()[1:]), weft.full(),
                                   bias=bias.relative(np.ones((4, 3)))), AlignmentError, ["bias"],
    ),
    "a rate above 1": (lambda: attend(dropout=1.5, seed=1), OptionError, ["dropout=1.5"]),
    "a traced rate": (lambda: jax.jit(lambda x: attend(dropout=x, seed=1))(0.5), OptionError, ["static_argnames"]),
    "no seed": (lambda: attend(dropout=0.1), OptionError, ["seed=None", "jax.random"]),
    "two keys": (lambda: attend(dropout=0.1, seed=jax.random.split(jax.random.key(0))), OptionError, ["one key"]),
    "a seed of a fraction": (lambda: attend(dropout=0.1, seed=0.5), OptionError, ["float"]),
    "a seed of 65 bits": (lambda: attend(dropout=0.1, seed=2**64), OptionError, ["64 bits"]),
    "extra keys alone": (lambda: attend(extra_keys=np.ones((2, 3, 2, 8), np.float32)), InputError, ["extra_values"]),
    "extra keys of other heads": (
        lambda: attend(extra_keys=np.ones((2, 3, 1, 8), np.float32), extra_values=np.ones((2, 3, 2, 8), np.float32)),
        InputError, ["extra_keys", "heads"],
    ),
    "extra keys with a bias": (
        lambda: attend(bias=np.ones((M, M)), extra_keys=arrays()[1], extra_values=arrays()[2]), UnsupportedError,
        ["no index"],
    ),
    "a card of no name": (lambda: attend(target="h300"), OptionError, ["h300", "'h200'"]),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name):
    call, error, words = REFUSALS[name]
    refuse(call, error, words)
