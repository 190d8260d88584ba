"""A sequence over four devices, beside one: values, gradients, and what is refused."""

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed")
jnp = jax.numpy
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import weft
import weft.jax
from weft.distributed import plan
from weft.errors import InputError, OptionError

S, D, DV = 96, 8, 12
GRID = weft.neighborhood((12, 8), (5, 3))
CASES = {
    "window": (weft.causal() & weft.window(left=20), (4, 2), "contiguous"),
    "zigzag": (weft.causal(), (4, 4), "zigzag"),
    "longformer": (weft.longformer(12, 3), (4, 4), "contiguous"),
    "one key head": (weft.dilated(4, 2, 3), (4, 1), "contiguous"),
    "chunks": (weft.causal() & weft.chunks(24), (4, 2), "contiguous"),
    "2-D": (GRID, (4, 2), "2x2"),
    "documents": (weft.causal() & weft.documents([30, 40, 26]), (4, 2), "contiguous"),
}


# (case, strategy, kind of the mesh's axis)
CALLS = [
    *((name, None, AxisType.Auto) for name in CASES),
    *(("window", strategy, AxisType.Explicit) for strategy in ("halo", "ulysses", "all-gather")),
    ("zigzag", "ulysses", AxisType.Auto),
    ("zigzag", "halo", AxisType.Auto),
    ("one key head", "ulysses", AxisType.Auto),
    ("2-D", "ulysses", AxisType.Auto),
]


def mesh_of(kind=AxisType.Auto):
    if jax.device_count() < 4:
        pytest.skip("needs four devices")
    return jax.make_mesh((4,), ("sequence",), axis_types=(kind,))


def arrays(heads):
    generator = np.random.default_rng(3)
    shapes = (1, S, heads[0], D), (1, S, heads[1], D), (1, S, heads[1], DV)
    return [generator.standard_normal(shape).astype(np.float32) for shape in shapes]


@pytest.mark.parametrize(("name", "strategy", "kind"), CALLS)
def test_values_and_gradients(name, strategy, kind):
    mesh = mesh_of(kind)
    pattern, heads, shards = CASES[name]
    held = plan(pattern, S, heads=heads, head_dim=(D, DV), dtype="float32", ranks=4, shards=shards).shards.tokens
    order = np.concatenate([tokens.array() for tokens in held])
    sinks = np.linspace(-1, 1, heads[0]).astype(np.float32)
    spec = P(None, "sequence")

    def inside(q, k, v, sinks):
        given = {"axis_name": "sequence", "shards": shards, "strategy": strategy, "return_lse": True}
        return weft.jax.distributed_attention(q, k, v, pattern, sinks=sinks, softcap=9.0, **given)

    def whole(q, k, v, sinks):
        return weft.jax.attention(q, k, v, pattern, sinks=sinks, softcap=9.0, return_lse=True)

    divided = jax.shard_map(
        inside, mesh=mesh, in_specs=(spec, spec, spec, P()), out_specs=(spec, spec), check_vma=False
    )
    x = arrays(heads)
    weights = np.random.default_rng(5).standard_normal((1, S, heads[0], DV)).astype(np.float32)

    def scalar(call, weights):
        def loss(*x):
            out, lse = call(*x)
            return (out * weights).sum() + lse.sum()

        return loss

    held = [jax.device_put(one[:, order], NamedSharding(mesh, spec)) for one in x]
    everywhere = jax.device_put(sinks, NamedSharding(mesh, P()))
    wanted, got = whole(*x, sinks), jax.jit(divided)(*held, everywhere)
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a, b[:, order], rtol=2e-5, atol=2e-5)
    wanted = jax.grad(scalar(whole, weights), (0, 1, 2, 3))(*x, sinks)
    got = jax.jit(jax.grad(scalar(divided, weights[:, order]), (0, 1, 2, 3)))(*held, everywhere)
    for a, b in zip(got[:3], wanted[:3], strict=True):
        np.testing.assert_allclose(a, b[:, order], rtol=5e-5, atol=5e-5)
    np.testing.assert_allclose(got[3], wanted[3], rtol=5e-5, atol=5e-5)


def test_devices_with_equal_work_share_a_branch():
    """Of a window's devices the first has no keys before it, and the others compute the same."""
    spec = P(None, "sequence")
    pattern = weft.causal() & weft.window(left=9)
    call = jax.shard_map(
        lambda q, k, v: weft.jax.distributed_attention(q, k, v, pattern, axis_name="sequence"),
        mesh=mesh_of(), in_specs=(spec,) * 3, out_specs=spec, check_vma=False,
    )  # fmt: skip
    text = str(jax.make_jaxpr(call)(*arrays((4, 4))))
    assert text.count("ppermute") == 1
    assert text.count("cond[") == 1


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"layout": "sbhd"}, OptionError, "sbhd"),
        ({"strategy": "halo+queries"}, OptionError, "JAX has"),
        ({"shards": [[(0, 24)], [(24, 48)], [(48, 96)], []]}, InputError, "one size"),
    ],
)
def test_refusals(options, error, said):
    spec = P(None, "sequence")
    call = jax.shard_map(
        lambda q, k, v: weft.jax.distributed_attention(q, k, v, weft.causal(), axis_name="sequence", **options),
        mesh=mesh_of(), in_specs=(spec,) * 3, out_specs=spec,
    )  # fmt: skip
    with pytest.raises(error, match=said):
        call(*arrays((4, 4)))
