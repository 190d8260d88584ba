"""Calls of kernels lowered for CUDA where there is no GPU: kernels are compiled, and written into the program."""

import zlib

import pytest

pytest.importorskip("jax", reason="JAX is not installed")
pytest.importorskip("triton", reason="Triton is not installed")

import jax
import jax.numpy as jnp

import weft
import weft.jax
from weft import bias
from weft.errors import UnsupportedError, UnsupportedKernel
from weft.jax import implementations
from weft.jax.gpu import bind
from weft.jax.gpu.message import TARGET
from weft.testing.refusals import refuse

B, N, HEADS, D = 2, 512, (4, 2), 64
MASK = weft.causal() & weft.window(left=100)
TABLE = jax.ShapeDtypeStruct((HEADS[0],), jnp.float32)
ELF = b"\x7fELF"


@pytest.fixture(autouse=True)
def _any_jaxlib(monkeypatch):
    """What is written needs no jaxlib that could run it."""
    monkeypatch.setattr(implementations, "LEAST_JAXLIB", (0, 0))


@pytest.fixture
def written(monkeypatch):
    """The messages of all launches."""
    found = []

    def kept(*args):
        found.append(zlib.decompress(inner(*args)))
        return zlib.compress(found[-1])

    inner = bind._opaque
    monkeypatch.setattr(bind, "_opaque", kept)
    return found


def lowered(attend, *more):
    shapes = [jax.ShapeDtypeStruct((B, N, heads, D), jnp.bfloat16) for heads in (HEADS[0], HEADS[1], HEADS[1])]
    return jax.jit(attend).trace(*shapes, *more).lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.more
def test_forward_and_gradients(written):
    def loss(q, k, v, sinks):
        out = weft.jax.attention(q, k, v, MASK, sinks=sinks, target="h200")
        return out.astype(jnp.float32).sum()

    text = lowered(jax.grad(loss, (0, 1, 2, 3)), TABLE)
    assert text.count(TARGET) == len(set(written)) >= 2
    assert all(ELF in message for message in written)


@pytest.mark.more
def test_score_functions_and_dropout(written):
    """With gradients of a table; under vmap one element follows the other."""

    def loss(q, k, v, slopes, key):
        out = weft.jax.attention(q, k, v, MASK, bias=bias.alibi(slopes), dropout=0.1, seed=key, target="h200")
        return out.astype(jnp.float32).sum()

    text = lowered(jax.grad(loss, (0, 1, 2, 3)), TABLE, jax.ShapeDtypeStruct((2,), jnp.uint32))
    assert text.count(TARGET) == len(set(written)) == 3


@pytest.mark.skipif(jax.default_backend() == "gpu", reason="there is a GPU")
def test_without_a_card_a_target_is_asked_for():
    with pytest.raises(UnsupportedKernel, match="target='h200'"):
        lowered(lambda *x: weft.jax.attention(*x, MASK, implementation="triton"))


def test_a_target_that_jaxlib_has_no_kernels_for():
    with pytest.raises(UnsupportedKernel, match="xla"):
        lowered(lambda *x: weft.jax.attention(*x, MASK, target="mi300x"))


@pytest.mark.more
def test_gradients_of_tables_have_no_order_on_a_gpu(written):
    def loss(q, k, v, slopes):
        out = weft.jax.attention(q, k, v, MASK, bias=bias.alibi(slopes), deterministic=True, target="h200")
        return out.astype(jnp.float32).sum()

    refuse(lambda: lowered(jax.grad(loss, 3), TABLE), UnsupportedError, ("deterministic=True", "stop_gradient"))
