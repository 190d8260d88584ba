"""Which calls are offered warp groups that specialise, and what their descriptors may reach."""

import math

import numpy as np
import pytest

import weft
from weft.planning.attention_plan import plan_attention
from weft.planning.choose import offered
from weft.planning.families import hopper
from weft.planning.families.base import Pass
from weft.planning.families.hopper import CONFIGS, WIDEST
from weft.planning.problem import Problem
from weft.planning.tiling.gpu import plan_for_device
from weft.planning.tma import TmaExtent, extents
from weft.target import GPUS
from weft.testing import workloads

H200, TILING = GPUS["h200"], CONFIGS["forward"]
BAND = weft.causal() & weft.window(left=300)


def problem(tokens=8192, heads=(32, 8), d=64, dtype="bfloat16"):
    return Problem(1, *heads, tokens, tokens, d, d, dtype, "cuda")


def offers(pattern, given=None, gpu=H200):
    given = given or problem()
    plan = plan_attention(pattern, given, gpu)
    return offered(Pass("forward", [(share.plan.acsr, given.q_heads) for share in plan.forward], given, gpu))


@pytest.mark.parametrize(
    ("name", "tiling"),
    [
        ("window_pm256", TILING),
        ("dilated_w512_d4", TILING),
        ("strided_l128_s128", TILING),
        ("dense_d64", TILING),
        ("gemma3_local_1024", WIDEST),
        ("gemma3_global", WIDEST),
    ],
)
def test_long_calls_take_them(name, tiling):
    one = workloads.WORKLOADS[name]
    sizes = Problem(one.batch, one.q_heads, one.kv_heads, one.m, one.n, one.d, one.dv, "bfloat16", "cuda")
    plan = plan_attention(one.make(), sizes, H200)
    assert plan.forward[0].plan.tiling == tiling
    assert plan.unspecialised("forward")[0].plan.tiling.groups == 0
    plan.verify()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("pattern", [BAND, weft.full(), weft.window(20, 20), weft.dilated(30, 30, 4)], ids=str)
def test_offered_to_lines(pattern, dtype):
    assert TILING in offers(pattern, problem(dtype=dtype))


@pytest.mark.parametrize(
    ("pattern", "apart"),
    [
        (BAND, {True}),
        (weft.causal(), {True}),
        (weft.documents([3000, 1000, 4192]), {False}),
        (weft.chunks(512) & weft.causal(), {False, True}),
    ],
    ids=["groups", "causal", "documents", "chunks"],
)
def test_lines_keep_edges_apart_where_they_are_not_by_groups(pattern, apart):
    """Short runs of lines are theirs, so that a structure of lines has two forwards still, and one of tables one."""
    assert {tiling.apart for tiling in offers(pattern) if tiling != TILING} == apart


@pytest.mark.parametrize(
    ("pattern", "given", "gpu"),
    [
        (weft.causal(), None, H200),
        (weft.documents([3000, 1000, 4192]), None, H200),
        (weft.dilated(30, 30, 3), None, H200),
        (weft.per_head([BAND, weft.window(9, 9)] * 16), None, H200),
        (weft.random_blocks(64, 3), None, H200),
        (weft.neighborhood((64, 128), (7, 7), dilation=2), None, H200),
        (weft.neighborhood((64, 128), (7, 7)), problem(dtype="float16"), H200),
        (BAND, problem(dtype="float32"), H200),
        (BAND, problem(d=128), H200),
        (BAND, None, GPUS["a100"]),
        (BAND, None, GPUS["b200"]),
    ],
    ids=["uneven", "documents", "lanes that end apart", "by head", "blocks", "lanes of a grid", "grid, float16",
         "float32", "128", "a100", "b200"],
)  # fmt: skip
def test_not_offered(pattern, given, gpu):
    assert TILING not in offers(pattern, given, gpu)


# ---- reach -----------------------------------------------------------------------------------------------------------
def tokens_of(reach):
    places, lanes = np.meshgrid(np.arange(reach.places), np.arange(reach.lanes))
    return set((reach.base + reach.step * places + lanes).reshape(-1).tolist())


def reached(pattern, tokens):
    """(what is reached of queries, of keys), or None, and the mask."""
    plan = plan_for_device(pattern.acsr(tokens, tokens), problem(tokens), H200, TILING)
    (nest,) = plan.nests
    found = extents(nest)
    mask = np.asarray(pattern.to_dense(tokens, tokens)).reshape(tokens, tokens)
    return found and (tokens_of(found[0]), set().union(*map(tokens_of, found[1:]))), mask


@pytest.mark.parametrize(
    "pattern",
    [
        BAND,
        weft.window(20, 20) & weft.padding([333]),
        weft.dilated(30, 30, 4),
        weft.window(3, 3).shift(0, 100),
        weft.causal() & (weft.periodic_keys(64) | weft.window(left=63)),
        weft.causal() & (weft.window(left=40) | weft.global_tokens(4)),
    ],
    ids=str,
)
def test_all_that_is_reached_is_seen(pattern):
    (queries, keys), mask = reached(pattern, 600)
    assert keys == set(np.flatnonzero(mask.any(0)).tolist())
    assert queries >= set(np.flatnonzero(mask.any(1)).tolist())


def test_lanes_are_an_axis_where_they_divide_the_tokens():
    found, _ = reached(weft.dilated(30, 30, 4), 600)
    assert found is not None
    plan = plan_for_device(weft.dilated(30, 30, 4).acsr(600, 600), problem(600), H200, TILING)
    assert extents(plan.nests[0]) == (TmaExtent(0, 4, 4, 150), TmaExtent(0, 4, 4, 150))
    assert reached(weft.dilated(30, 30, 4), 601)[0] is None


def grid_plan(shape, size, d=128, dtype="bfloat16", heads=(2, 2), **more):
    tokens = math.prod(shape)
    given = Problem(1, *heads, tokens, tokens, d, d, dtype, "cuda")
    return plan_attention(weft.neighborhood(shape, size, **more), given, H200)


@pytest.mark.parametrize(
    "shape, size, d", [((64, 64), (31, 31), 128), ((16, 32, 32), (8, 12, 12), 128), ((64, 64), (7, 7), 64)]
)
def test_grids_go_by_groups(shape, size, d):
    """Gradients too: at D=64 in two kernels, at D=128 in one walk."""
    plan = grid_plan(shape, size, d, heads=(16, 16))
    assert all((plan.specialised(one) is not None) == (d == 64) for one in ("dq", "dkdv"))
    assert plan.specialised("forward") is not None
    assert plan.sums_by_groups == (d == 128)


@pytest.mark.parametrize(
    "changed, reason",
    [
        ({"d": 256}, "D=128 too, in bfloat16"),
        ({"dtype": "float16"}, "D=128 too, in bfloat16"),
        ({"shape": (8, 16, 16), "size": (4, 4, 4), "heads": (4, 2)}, "heads share keys"),
        ({"dilation": 2}, "not one grid as it comes"),
    ],
)
def test_grids_that_groups_do_not_compute(changed, reason):
    plan = grid_plan(**({"shape": (32, 32), "size": (7, 7)} | changed))
    assert plan.specialised("forward") is None
    assert reason in hopper.reasons_against(plan.asked("forward"))


def test_boxes_are_chosen_by_what_groups_walk():
    """Two groups share a box along its first axis. Boxes of 8 x 16 queries read 1,232 tiles of keys, of which groups
    walk 2,016. These read 1,344, of which groups walk 1,760.
    """
    (nest,) = grid_plan((128, 128), (13, 13), heads=(16, 16)).forward[0].plan.nests
    assert (nest.box, [axis.block_k for axis in nest.parts[0].axes]) == ((32, 4), [4, 16])
