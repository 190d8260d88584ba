"""weft's kernels from JAX on a GPU, beside blocks of jax.numpy in float32; all of JAX's ways to call them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

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


def arrays(layout, dim, dtype=jnp.bfloat16, batch=B):
    rng = np.random.default_rng(dim)
    shapes = [(batch, N, heads, dim) for heads in (HEADS[0], HEADS[1], HEADS[1], HEADS[0])]
    shapes = shapes if layout == "bshd" else [(b, h, n, d) for b, n, h, d in shapes]
    return [jnp.asarray(rng.standard_normal(shape), dtype) for shape in shapes]


def close(found, wanted, tolerance=1.5e-2):
    for pair in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        one, other = (np.asarray(x, np.float64) for x in pair)
        assert np.abs(one - other).max() <= tolerance * np.abs(other).max()


def gradients(attend, dout):
    return jax.grad(lambda *args: (attend(*args).astype(jnp.float32) * dout).sum(), argnums=(0, 1, 2, 3))


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("name", PATTERNS)
def test_results_and_gradients(name, layout, dim):
    q, k, v, dout = arrays(layout, dim)
    sinks = jnp.linspace(-1, 1, HEADS[0])

    def attend(q, k, v, sinks, implementation="triton"):
        return weft.jax.attention(q, k, v, PATTERNS[name], sinks=sinks, layout=layout, implementation=implementation)

    found = jax.jit(gradients(attend, dout))(q, k, v, sinks)
    wide = [x.astype(jnp.float32) for x in (q, k, v)]
    wanted = gradients(lambda *args: attend(*args, implementation="xla"), dout)(*wide, sinks)
    close(found, wanted)
    close(attend(q, k, v, sinks), attend(*wide, sinks, implementation="xla"))


@pytest.mark.parametrize("options", [{"softcap": 3.0}, {"alibi_slopes": True}, {"scale": -0.1}], ids=str)
def test_options_and_lse(options):
    q, k, v, _ = arrays("bshd", 64, jnp.float16)
    more = {name: jnp.linspace(0.1, 0.5, HEADS[0]) if value is True else value for name, value in options.items()}
    found = weft.jax.attention(q, k, v, weft.causal(), return_lse=True, **more)
    wide = [x.astype(jnp.float32) for x in (q, k, v)]
    close(found, weft.jax.attention(*wide, weft.causal(), return_lse=True, implementation="xla", **more))


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
    wide = [x.astype(jnp.float32) for x in (q[:, -1:], k, v)]
    close(found, weft.jax.attention(*wide, mask, implementation="xla"))


def test_what_kernels_do_not_compute_is_refused():
    q, k, v, _ = arrays("bshd", 64)
    planned = weft.jax.plan(SHORT, q, k, v)
    with pytest.raises(UnsupportedKernel, match="pass the pattern"):
        weft.jax.attention(q, k, v, planned)
