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
from weft.errors import UnsupportedKernel

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
def dense(q, k, v, sinks, slopes, scale, live, softcap=None):
    """out (B, M, Hq, Dv) and lse (B, M, Hq); sinks of -inf and slopes of 0 change nothing."""
    q = q.reshape(*q.shape[:2], k.shape[2], -1, q.shape[3])
    s = jnp.einsum("bmkgd,bnkd->bmkgn", q, k) * scale
    s = s if softcap is None else softcap * jnp.tanh(s / softcap)
    distance = abs(jnp.arange(live.shape[0])[:, None] - jnp.arange(live.shape[1]))
    grouped = q.shape[2:4]
    s = s - slopes.reshape(*grouped, 1) * distance[:, None, None, :]
    s = jnp.where(live[:, None, None, :], s, -jnp.inf)
    rows = jnp.broadcast_to(sinks.reshape(*grouped, 1), (*s.shape[:-1], 1))
    s = jnp.concatenate([s, rows], axis=-1)
    lse = jax.nn.logsumexp(s, axis=-1)
    out = jnp.einsum("bmkgn,bnkd->bmkgd", jnp.exp(s - lse[..., None])[..., :-1], v)
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
