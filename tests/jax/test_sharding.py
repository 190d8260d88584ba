"""Four devices: jit over sharded arrays and shard_map, with automatic and with explicit mesh axes."""

import re

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed")
jnp = jax.numpy
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import weft
import weft.jax
from weft.errors import InputError, UnsupportedError

M = 48
MASK = weft.causal() & weft.window(left=9)
TYPES = {"automatic": AxisType.Auto, "explicit": AxisType.Explicit}
SPEC = P("data", None, "model")  # batch rows and heads of (B, M, H, D)


@pytest.fixture(params=TYPES)
def mesh(request):
    if jax.device_count() < 4:
        pytest.skip("needs four devices")
    found = jax.make_mesh((2, 2), ("data", "model"), axis_types=(TYPES[request.param],) * 2)
    with jax.set_mesh(found):
        yield found


def arrays(heads=(4, 2), seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(4, M, h, 8)).astype(np.float32) for h in (heads[0], heads[1], heads[1])]


def placed(mesh, x, *specs):
    specs = specs or (SPEC,) * len(x)
    return [jax.device_put(one, NamedSharding(mesh, spec)) for one, spec in zip(x, specs, strict=True)]


def attend(q, k, v):
    return weft.jax.attention(q, k, v, MASK)


def gradient(q, k, v):
    return jax.grad(lambda *x: (attend(*x) ** 2).sum(), (0, 1, 2))(q, k, v)


@pytest.fixture(scope="module")
def wanted():
    x = arrays()
    return jax.jit(attend)(*x), jax.jit(gradient)(*x)


def close(got, want):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def collectives(function, *x):
    text = jax.jit(function).lower(*x).compile().as_text()
    return re.findall(r"all-gather|all-reduce|all-to-all|collective-permute", text)


def divided(x):
    return x.sharding.shard_shape(x.shape) == (x.shape[0] // 2, x.shape[1], x.shape[2] // 2, x.shape[3])


def test_jit_over_batch_rows_and_heads_sends_nothing(mesh, wanted):
    x = placed(mesh, arrays())
    out, grads = jax.jit(attend)(*x), jax.jit(gradient)(*x)
    close((out, grads), wanted)
    assert all(map(divided, (out, *grads)))
    assert collectives(attend, *x) == collectives(gradient, *x) == []


def test_eager(mesh, wanted):
    x = placed(mesh, arrays())
    out = attend(*x)
    close((out, gradient(*x)), wanted)
    assert divided(out)


@pytest.mark.parametrize("check_vma", [True, False])
def test_shard_map_and_gradients_inside_and_through_it(mesh, wanted, check_vma):
    x = placed(mesh, arrays())
    how = {"mesh": mesh, "in_specs": (SPEC,) * 3, "check_vma": check_vma}
    inside = jax.shard_map(attend, out_specs=SPEC, **how)
    close(jax.jit(inside)(*x), wanted[0])
    through = jax.jit(jax.grad(lambda *x: (inside(*x) ** 2).sum(), (0, 1, 2)))
    close(through(*x), wanted[1])
    close(jax.jit(jax.shard_map(gradient, out_specs=(SPEC,) * 3, **how))(*x), wanted[1])


def test_shard_map_over_heads_of_queries_with_keys_on_every_device(mesh):
    """Multi-query attention: the gradient of shared keys is summed over devices."""
    x = arrays(heads=(4, 1))
    spec, whole = P(None, None, "model"), P()
    how = {"mesh": mesh, "in_specs": (spec, whole, whole), "out_specs": spec}
    inside = jax.shard_map(attend, **how)
    through = jax.jit(jax.grad(lambda *x: (inside(*x) ** 2).sum(), (0, 1, 2)))
    close(through(*placed(mesh, x, spec, whole, whole)), jax.jit(gradient)(*x))


def test_vmap_and_checkpoint_over_sharded_arrays(mesh, wanted):
    x = placed(mesh, [np.stack([one, one]) for one in arrays()], *[P(None, *SPEC)] * 3)
    got = jax.jit(jax.vmap(gradient))(*x)
    close([one[0] for one in got], wanted[1])
    close([one[1] for one in got], wanted[1])
    remat = jax.checkpoint(attend)
    grads = jax.jit(jax.grad(lambda *x: (remat(*x) ** 2).sum(), (0, 1, 2)))(*placed(mesh, arrays()))
    close(grads, wanted[1])


def test_planned_masks_as_arguments(mesh, wanted):
    x = placed(mesh, arrays())
    planned = weft.jax.plan(MASK, *x)
    got = jax.jit(weft.jax.attention)(*x, planned)
    close(got, wanted[0])


def test_a_divided_sequence_is_refused_with_the_way_out(mesh):
    for x in (placed(mesh, arrays(), P(None, "data"), P(), P()), placed(mesh, arrays(), P(), P(None, "model"), P())):
        with pytest.raises(UnsupportedError, match="distributed_attention"):
            attend(*x)
        # automatic axes are known to XLA alone, which wraps what is raised
        with pytest.raises((UnsupportedError, jax.errors.JaxRuntimeError), match="distributed_attention"):
            jax.block_until_ready(jax.jit(attend)(*x))


def test_heads_that_differ_are_gathered_and_right(mesh):
    mask = weft.per_head([weft.causal(), weft.window(3, 3), weft.chunks(8), weft.full()])
    x = arrays()
    want = weft.jax.attention(*x, mask)
    got = jax.jit(lambda q, k, v: weft.jax.attention(q, k, v, mask))(*placed(mesh, x))
    close(got, want)


def test_batch_rows_that_differ_are_refused_inside_shard_map(mesh):
    mask = weft.per_batch([weft.causal(), weft.full(), weft.causal(), weft.full()])
    inside = jax.shard_map(
        lambda q, k, v: weft.jax.attention(q, k, v, mask), mesh=mesh, in_specs=(SPEC,) * 3, out_specs=SPEC
    )
    with pytest.raises(InputError, match="4 batch rows"):
        jax.jit(inside)(*placed(mesh, arrays()))


def test_heads_of_a_group_over_more_devices_than_keys_have(mesh):
    """Four query heads over four devices, two of keys: heads of a group are gathered, gradients are right."""
    x = arrays()
    spec = P(None, None, ("data", "model"))
    if mesh.axis_types[0] is AxisType.Explicit:
        pytest.skip("explicit axes cannot divide two heads of keys into four")
    got = jax.jit(gradient)(*placed(mesh, x, spec, P(), P()))
    close(got, jax.jit(gradient)(*x))
