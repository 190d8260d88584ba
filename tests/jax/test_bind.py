"""The way of a call to weft's GPU kernels, as far as it goes without a GPU."""

import pytest

pytest.importorskip("jax", reason="JAX is not installed")

import jax
import jax.numpy as jnp

import weft
from weft.errors import AlignmentError, UnsupportedError, UnsupportedKernel
from weft.jax.gpu.front import _shift
from weft.planning.problem import Problem


def problem(m, n):
    return Problem(1, 2, 2, m, n, 64, 64, "bfloat16", "cuda")


@pytest.mark.skipif(jax.default_backend() == "gpu", reason="there is a GPU")
def test_without_a_gpu_there_is_no_card():
    from weft.jax.gpu.bind import card

    with pytest.raises(UnsupportedKernel, match="xla"):
        card()


def test_strides_are_those_of_each_tensor():
    """JAX hands a dict on with its keys sorted; q has more heads than k and v."""
    from weft.jax.gpu import attention

    call = attention.Call(weft.causal(), problem(8, 8), None, None, "bshd")
    tensors = {"k": jnp.zeros((2, 8, 2, 4)), "q": jnp.zeros((2, 8, 6, 4)), "v": jnp.zeros((2, 8, 2, 5))}
    assert attention._layout(call, tensors, {}).strides == ((192, 4, 24, 1), (64, 4, 8, 1), (80, 5, 10, 1))


def test_distances_of_slopes():
    assert _shift(weft.causal(), problem(8, 8)) == 0
    assert _shift(weft.causal(align="bottom-right"), problem(3, 8)) == 5
    assert _shift(weft.causal(align="top-left"), problem(3, 8)) == 0
    with pytest.raises(AlignmentError, match="aligned"):
        _shift(weft.full(), problem(3, 8))
    with pytest.raises(UnsupportedError, match="grid"):
        _shift(weft.neighborhood((2, 4), (1, 3)), problem(8, 8))
