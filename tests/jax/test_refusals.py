"""What may not be passed: one clear exception each, before anything is compiled."""

import subprocess
import sys
from unittest import mock

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed")
jnp = jax.numpy

import weft
import weft.jax
from weft.errors import AlignmentError, InputError, LengthError, OptionError, UnsupportedError, UnsupportedKernel
from weft.jax import implementations
from weft.planning.problem import Problem
from weft.testing.refusals import refuse

M = 32


def arrays(m=M, n=None, heads=(4, 2), dtype=np.float32):
    n = m if n is None else n
    return [np.zeros((2, length, h, 8), dtype) for h, length in ((heads[0], m), (heads[1], n), (heads[1], n))]


def attend(*x, mask=None, **options):
    return weft.jax.attention(*(x or arrays()), weft.causal() if mask is None else mask, **options)


def traced(name, value):
    return lambda: jax.jit(lambda x: attend(**{name: x}))(value)


def zero_gradient():
    """What jax.grad gives for an integer."""
    return np.zeros((2, M, 2, 8), jax.dtypes.float0)


def elsewhere(platform):
    """A process that computes on another platform by default, as on a machine with a GPU."""
    return mock.patch.object(implementations, "platform_of", lambda arrays: platform)


def on_a_gpu():
    with elsewhere("gpu"):
        attend()


REFUSALS = {
    # arrays
    "a list": (lambda: attend([1.0], *arrays()[1:]), InputError, ["q is list"]),
    "integers": (lambda: attend(*arrays(dtype=np.int32)), InputError, ["int32", "float32"]),
    "float0": (lambda: attend(arrays()[0], zero_gradient(), arrays()[2]), InputError, ["k is float0"]),
    "complex numbers": (lambda: attend(*arrays(dtype=np.complex64)), InputError, ["complex64"]),
    "a type of eight bits": (
        lambda: attend(*[jnp.asarray(x, jnp.float8_e4m3fn) for x in arrays()]), InputError, ["float8_e4m3fn"],
    ),
    "two dimensions": (lambda: attend(*[x[0, 0] for x in arrays()]), InputError, ["2 dimensions", "(B, M, Hq, D)"]),
    "some without a batch": (lambda: attend(arrays()[0][0], *arrays()[1:]), InputError, ["batch dimension"]),
    "two dtypes": (lambda: attend(arrays()[0].astype(np.float16), *arrays()[1:]), InputError, ["float16"]),
    "two batch sizes": (lambda: attend(arrays()[0][:1], *arrays()[1:]), InputError, ["1 batch rows"]),
    "k unlike v": (lambda: attend(*arrays()[:2], arrays()[2][:, :9]), InputError, ["same heads and length"]),
    "two head dimensions": (lambda: attend(arrays()[0][..., :4], *arrays()[1:]), InputError, ["4", "8"]),
    "no head dimension": (lambda: attend(*[x[..., :0] for x in arrays()]), InputError, ["dimension is 0"]),
    "heads that do not divide": (lambda: attend(*arrays(heads=(4, 3))), InputError, ["4 query heads", "bshd"]),
    "shapes that disagree inside jit": (
        lambda: jax.jit(attend)(*arrays()[:2], arrays()[2][:, :9]), InputError, ["same heads and length"],
    ),
    # masks
    "a boolean mask": (lambda: attend(mask=np.ones((M, M), bool)), InputError, ["weft.recognize"]),
    "a traced mask": (traced("mask", np.ones((M, M), bool)), InputError, ["traced", "outside of jax.jit"]),
    "a function": (lambda: attend(mask=lambda q, k: q >= k), InputError, ["function"]),
    "no alignment": (lambda: attend(*arrays(8, 9)), AlignmentError, ["align"]),
    "another length": (lambda: attend(mask=weft.documents([3, 4])), LengthError, ["7"]),
    "a plan for another length": (
        lambda: jax.jit(lambda *x: attend(*x, mask=weft.jax.plan(weft.causal(), *arrays(9))))(*arrays()), InputError,
        ["9 queries", "32"],
    ),
    "a pattern for other heads": (lambda: attend(mask=weft.per_head([weft.full()] * 3)), InputError, ["3 heads"]),
    "a plan for other heads": (
        lambda: attend(*arrays(heads=(4, 4)), mask=weft.jax.plan(weft.per_head([weft.full()] * 4), *arrays())),
        InputError, ["2 key/value heads"],
    ),
    "a plan of integers": (lambda: weft.jax.plan(weft.full(), *arrays(dtype=np.int32)), InputError, ["plan(", "int32"]),
    "a plan of a list": (lambda: weft.jax.plan([1], *arrays()), InputError, ["plan("]),
    # options
    "a layout": (lambda: attend(layout="bsnh"), OptionError, ["bsnh", "bhsd"]),
    "a traced scale": (traced("scale", 0.5), UnsupportedError, ["traced", "static_argnames='scale'"]),
    "a traced softcap": (traced("softcap", 0.5), UnsupportedError, ["traced"]),
    "an array for a scale": (lambda: attend(scale=jnp.float32(2.0)), UnsupportedError, ["multiply q"]),
    "a scale of text": (lambda: attend(scale="2"), OptionError, ["str"]),
    "an infinite scale": (lambda: attend(scale=float("inf")), OptionError, ["inf"]),
    "a softcap of nothing": (lambda: attend(softcap=0.0), OptionError, ["positive"]),
    "a scale over a small softcap": (lambda: attend(scale=1e38, softcap=1e-3), OptionError, ["softcap=0.001"]),
    "sinks of another length": (lambda: attend(sinks=np.zeros(3, np.float32)), OptionError, ["(4,)"]),
    "sinks as a list": (lambda: attend(sinks=[0.0] * 4), OptionError, ["list"]),
    "complex slopes": (lambda: attend(alibi_slopes=np.zeros(4, np.complex64)), OptionError, ["real"]),
    "slopes on a grid": (
        lambda: attend(alibi_slopes=np.ones(4, np.float32), mask=weft.neighborhood((4, 8), 3)), UnsupportedError,
        ["grid"],
    ),
    "slopes without an alignment": (
        lambda: attend(*arrays(8, 9), alibi_slopes=np.ones(4, np.float32), mask=weft.full()), AlignmentError, ["M=8"],
    ),
    "return_lse as a number": (lambda: attend(return_lse=1), OptionError, ["return_lse=1"]),
    "a traced return_lse": (traced("return_lse", True), OptionError, ["static_argnames='return_lse'"]),
    "deterministic as text": (lambda: attend(deterministic="yes"), OptionError, ["deterministic='yes'"]),
    # implementations
    "an unknown implementation": (lambda: attend(implementation="mosaic"), OptionError, ["mosaic", "'xla'"]),
    "an unknown one among several": (lambda: attend(implementation=("xla", "mosaic")), OptionError, ["mosaic"]),
    "no implementation": (lambda: attend(implementation=()), OptionError, ["None"]),
    "triton": (lambda: attend(implementation="triton"), UnsupportedKernel, ["triton", "implementation='xla'"]),
    "a plan like a pattern": (
        lambda: weft.jax.plan(weft.full(), *arrays(), like=weft.full()), InputError, ["like=Call"],
    ),
    "a plan for triton": (
        lambda: weft.jax.plan(weft.full(), *arrays(), implementation="triton"), UnsupportedKernel, ["triton"],
    ),
    "a GPU without a handler": (on_a_gpu, UnsupportedKernel, ["gpu", "implementation='xla'"]),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name):
    call, error, words = REFUSALS[name]
    refuse(call, error, words)


def test_the_first_implementation_that_can_is_used():
    want = attend()
    np.testing.assert_array_equal(attend(implementation=("triton", "cpu")), want)
    with elsewhere("gpu"):
        np.testing.assert_array_equal(attend(implementation=["triton", "cpu", "xla"]), want)
        with pytest.raises(UnsupportedKernel, match="the arrays are for gpu"):
            attend(implementation="cpu")


def test_neither_torch_nor_triton_is_imported():
    """Not even lazily: both are hidden, and attention runs forward and backward, planned and from masks."""
    code = """
import sys
sys.modules.update(dict.fromkeys(("torch", "triton")))
import numpy as np, jax, weft, weft.jax
x = np.ones((1, 64, 2, 8), np.float32)
mask = weft.causal() & weft.window(left=9)
jax.grad(lambda q: weft.jax.attention(q, x, x, weft.jax.plan(mask, x, x, x)).sum())(x)
weft.jax.dot_product_attention(x, x, x, mask=mask.to_dense(64)[None, None])
print(weft.jax.attention is weft.__getattr__("jax").attention, weft.recognize(mask.to_dense(64)).pattern)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("True ")


def test_kernels_plan_no_mask():
    """On a GPU too, where they are what a call chooses."""
    problem = Problem(1, 2, 2, 64, 64, 64, 64, "bfloat16", "cuda")
    why, cure = implementations.Triton().reason_against(implementations.Request(problem, "gpu", planning=True))
    assert "tables of blocks" in why and "pass the pattern" in cure
