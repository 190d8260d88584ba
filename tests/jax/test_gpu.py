"""weft's kernels from JAX on a GPU, beside dense attention in float64; all of JAX's ways to call them.

A kernel takes seconds to compile, and XLA takes as long for a loop over blocks. So whatever shares kernels is one test,
and all of one head dimension share one compilation of dense attention, to which a mask is data.
"""

from functools import partial

import numpy as np
import pytest

pytest.importorskip("jax", reason="JAX is not installed")

import jax
import jax.numpy as jnp
from tests.jax.compare import enable_x64

import weft
import weft.jax
from weft.errors import UnsupportedError, UnsupportedKernel
from weft.score.dropout import Dropout

pytestmark = pytest.mark.skipif(jax.default_backend() != "gpu", reason="JAX sees no GPU here")
SHORT = weft.causal() & weft.window(left=127)
PATTERNS = {
    "causal": weft.causal(),
    "window": weft.window(left=256, right=256),
    "short": SHORT,
    "few keys beside": weft.causal() & (weft.window(left=127) | weft.periodic_keys(step=128)),
    "longformer": weft.longformer(256, 8),
    "documents": weft.documents(lengths=[700, 300, 1048]) & weft.causal(),
    "neighborhood": weft.neighborhood((32, 64), (7, 7)),
    "bigbird": weft.bigbird(64),
}
B, N, HEADS = 2, 2048, (4, 2)
TURN = {"bshd": (0, 1, 2, 3), "bhsd": (0, 2, 1, 3)}


def arrays(layout, dim, dtype=jnp.bfloat16, batch=B):
    rng = np.random.default_rng(dim)
    shapes = [(batch, N, heads, dim) for heads in (HEADS[0], HEADS[1], HEADS[1], HEADS[0])]
    return [jnp.asarray(rng.standard_normal(shape).transpose(TURN[layout]), dtype) for shape in shapes]


@partial(jax.jit, static_argnames="softcap")
def dense(q, k, v, sinks, slopes, scale, live, softcap=None, bias=0.0, factors=1.0):
    """out (B, M, Hq, Dv) and lse (B, M, Hq); sinks of -inf and slopes of 0 change nothing. bias, factors: of weights,
    (B, M, Hq, N).
    """
    q = q.reshape(*q.shape[:2], k.shape[2], -1, q.shape[3])
    s = jnp.einsum("bmkgd,bnkd->bmkgn", q, k) * scale
    s = s if softcap is None else softcap * jnp.tanh(s / softcap)
    distance = abs(jnp.arange(live.shape[0])[:, None] - jnp.arange(live.shape[1]))
    grouped = q.shape[2:4]
    s = (s.reshape(*s.shape[:2], -1, s.shape[4]) + bias).reshape(s.shape)
    s = s - slopes.reshape(*grouped, 1) * distance[:, None, None, :]
    s = jnp.where(live[:, None, None, :], s, -jnp.inf)
    rows = jnp.broadcast_to(sinks.reshape(*grouped, 1), (*s.shape[:-1], 1))
    s = jnp.concatenate([s, rows], axis=-1)
    lse = jax.nn.logsumexp(s, axis=-1)
    weights = jnp.exp(s - lse[..., None])[..., :-1]
    weights = (weights.reshape(*s.shape[:2], -1, live.shape[1]) * factors).reshape(weights.shape)
    out = jnp.einsum("bmkgn,bnkd->bmkgd", weights, v)
    return out.reshape(*out.shape[:2], -1, out.shape[-1]), lse.reshape(*lse.shape[:2], -1)


@jax.jit
def dense_gradients(q, k, v, sinks, live, dout):
    def loss(q, k, v, sinks):
        out, _ = dense(q, k, v, sinks, jnp.zeros(HEADS[0]), q.shape[-1] ** -0.5, live)
        return (out * dout).sum(), out

    (_, out), grads = jax.value_and_grad(loss, (0, 1, 2, 3), has_aux=True)(q, k, v, sinks)
    return out, *grads


def wide(*given):
    return [jnp.asarray(np.asarray(x, np.float64)) for x in given]


def live_of(mask, m=N, n=N):
    return jnp.asarray(mask.to_dense(m, n))


def close(found, wanted, tolerance=1.5e-2):
    for pair in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        one, other = (np.asarray(x, np.float64) for x in pair)
        assert np.abs(one - other).max() <= tolerance * np.abs(other).max()


def gradients(attend, dout):
    def loss(*args):
        out = attend(*args)
        return (out.astype(jnp.float32) * dout).sum(), out

    step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2, 3), has_aux=True))

    def run(*args):
        (_, out), grads = step(*args)
        return out, *grads

    return run


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("name", PATTERNS)
def test_results_and_gradients(name, dim):
    """In both layouts, which share kernels."""
    sinks, mask = jnp.linspace(-1, 1, HEADS[0]), PATTERNS[name]
    with enable_x64(True):
        q, k, v, dout = wide(*arrays("bshd", dim))
        wanted = [np.asarray(x) for x in dense_gradients(q, k, v, *wide(sinks), live_of(mask), dout)]
    for layout, turn in TURN.items():
        q, k, v, dout = arrays(layout, dim)

        def attend(q, k, v, sinks, layout=layout):
            return weft.jax.attention(q, k, v, mask, sinks=sinks, layout=layout, implementation="triton")

        out, dq, dk, dv, dsinks = gradients(attend, dout)(q, k, v, sinks)
        close([*(x.transpose(turn) for x in (out, dq, dk, dv)), dsinks], wanted)


def test_blocks_of_numpy_run_on_a_gpu_too():
    q, k, v, _ = (x[:1, :256] for x in arrays("bshd", 64))
    found = jax.jit(lambda *args: weft.jax.attention(*args, SHORT, implementation="xla"))(q, k, v)
    close(found, reference(q, k, v, SHORT)[0])


def reference(q, k, v, mask, softcap=None, scale=None, alibi_slopes=None):
    """out and lse in float64."""
    slopes = np.zeros(HEADS[0]) if alibi_slopes is None else alibi_slopes
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    with enable_x64(True):
        live = live_of(mask, q.shape[1], k.shape[1])
        found = dense(*wide(q, k, v, np.full(HEADS[0], -np.inf), slopes, scale), live, softcap)
        return [np.asarray(x) for x in found]


@pytest.mark.parametrize("options", [{"softcap": 3.0}, {"alibi_slopes": True}, {"scale": -0.1}], ids=str)
def test_options_and_lse(options):
    q, k, v, _ = arrays("bshd", 64, jnp.float16)
    more = {name: jnp.linspace(0.1, 0.5, HEADS[0]) if value is True else value for name, value in options.items()}
    found = weft.jax.attention(q, k, v, weft.causal(), return_lse=True, **more)
    close(found, reference(q, k, v, weft.causal(), **more))


# ---- what depends on the numbers of a pair ---------------------------------------------------------------------------
SHORT_N, SEED = 384, 2**40 + 5
PAIRS = np.ix_(range(B), range(SHORT_N), range(HEADS[0]), range(SHORT_N))  # b, q, h, k
PLACE = np.clip(PAIRS[3] - PAIRS[1], -20, 20) + 20
OF_PAIRS = {  # the shape of a table, the options that it makes, and the bias that it is
    "slopes": ((4,), lambda t: {"alibi_slopes": t}, lambda t: -t[PAIRS[2]] * abs(PAIRS[1] - PAIRS[3])),
    "relative": ((4, 41), lambda t: {"bias": weft.bias.relative(t)}, lambda t: t[PAIRS[2], PLACE]),
    "dense": ((1, 4, SHORT_N, SHORT_N), lambda t: {"bias": t}, lambda t: t.transpose(0, 2, 1, 3)),
    "of keys": (
        (SHORT_N,), lambda t: {"score": lambda score, b, h, q, k: score + t[k]}, lambda t: t[PAIRS[3]],
    ),
    "dropout": ((4,), lambda t: {"alibi_slopes": t, "dropout": 0.25, "seed": SEED}, None),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_PAIRS)
def test_score_functions_and_dropout(name):
    """Results, and gradients of q, k, v and tables; the same weights go as everywhere."""
    shape, options, bias = OF_PAIRS[name]
    x = [one[:, :SHORT_N] for one in arrays("bshd", 64)]
    table, mask, factors = np.random.default_rng(3).uniform(0.1, 0.6, shape), weft.window(100, 50), np.float64(1.0)
    if name == "dropout":
        bias = OF_PAIRS["slopes"][2]
        factors = Dropout(0.25, SEED).factors(PAIRS[0], PAIRS[2], PAIRS[1], PAIRS[3])

    def attend(q, k, v, table):
        return weft.jax.attention(q, k, v, mask, implementation="triton", **options(table))

    found = gradients(attend, x[3])(*x[:3], jnp.asarray(table, jnp.float32))
    with enable_x64(True):
        q, k, v, dout = wide(*x)
        none = np.full(HEADS[0], -np.inf), np.zeros(HEADS[0]), 64**-0.5, live_of(mask, SHORT_N, SHORT_N)

        def of(*args):
            return dense(*args[:3], *none, bias=bias(args[3]), factors=factors)[0]

        wanted = [np.asarray(one) for one in gradients(of, dout)(q, k, v, jnp.asarray(table))]
    close(found, wanted, 2e-2)


def test_keys_that_seed_and_mapped_calls():
    q, k, v, _ = (x[:, :SHORT_N] for x in arrays("bshd", 64))
    keys = jax.random.split(jax.random.key(0), 2)
    run = jax.jit(lambda key, q: weft.jax.attention(q, k, v, SHORT, dropout=0.25, seed=key))
    each = [run(key, q) for key in keys]
    close(jax.jit(jax.vmap(run, (0, None)))(keys, q), jnp.stack(each), 1e-6)
    assert float(abs(each[0] - each[1]).max()) > 0.1


def test_extra_keys():
    q, k, v, _ = (x[:, :SHORT_N] for x in arrays("bshd", 64))
    mask = weft.padding(SHORT_N - 40) & SHORT
    extra = k[:, -40:], v[:, -40:]
    found = weft.jax.attention(q, k, v, mask, extra_keys=extra[0], extra_values=extra[1])
    seen = mask.to_dense(SHORT_N) | (np.arange(SHORT_N) >= SHORT_N - 40)
    close(found, reference(q, k, v, weft.recognize(seen).pattern)[0])


def test_gradients_of_tables_have_no_fixed_order():
    q, k, v, _ = (x[:, :SHORT_N] for x in arrays("bshd", 64))
    by = jax.grad(lambda t: weft.jax.attention(q, k, v, SHORT, alibi_slopes=t, deterministic=True).sum())
    with pytest.raises(UnsupportedError, match="no fixed order"):
        by(jnp.ones(HEADS[0]))


# ---- JAX's transformations -------------------------------------------------------------------------------------------
def test_mapped_scanned_and_under_checkpoint():
    q, k, v, dout = arrays("bshd", 64)

    def loss(q, k, v):
        return (weft.jax.attention(q, k, v, SHORT).astype(jnp.float32) * dout[:1]).sum()

    each = [jax.grad(loss)(q[i : i + 1], k[i : i + 1], v[i : i + 1]) for i in range(B)]
    stacked = [x[:, None] for x in (q, k, v)]
    close(jax.jit(jax.vmap(jax.grad(loss)))(*stacked), jnp.stack(each))
    close(jax.jit(jax.grad(jax.checkpoint(loss)))(q[:1], k[:1], v[:1]), each[0])
    layers = jax.jit(
        lambda x: jax.lax.scan(lambda c, _: (weft.jax.attention(c, k, v, SHORT), None), x, None, length=3)[0]
    )
    one = q
    for _ in range(3):
        one = weft.jax.attention(one, k, v, SHORT)
    close(layers(q), one)


def test_the_same_bits_on_request():
    q, k, v, dout = arrays("bshd", 128)

    def loss(q, k, v):
        out = weft.jax.attention(q, k, v, weft.longformer(256, 8), deterministic=True)
        return (out.astype(jnp.float32) * dout).sum()

    step = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))
    first, again = step(q, k, v), step(q, k, v)
    assert all(bool((a == b).all()) for a, b in zip(first, again, strict=True))


def test_few_queries_against_many_keys():
    q, k, v, _ = arrays("bshd", 128)
    mask = weft.causal(align="bottom-right")
    found = weft.jax.attention(q[:, -1:], k, v, mask)
    close(found, reference(q[:, -1:], k, v, mask)[0])


def test_what_kernels_do_not_compute_is_refused():
    q, k, v, _ = arrays("bshd", 64)
    planned = weft.jax.plan(SHORT, q, k, v)
    with pytest.raises(UnsupportedKernel, match="pass the pattern"):
        weft.jax.attention(q, k, v, planned)
