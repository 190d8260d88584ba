"""Gradients of tables from sums that kernels leave."""

import numpy as np
import pytest

pytest.importorskip("jax", reason="JAX is not installed")

import jax.numpy as jnp

import weft
from weft.jax.gpu.entries import gradients_of_tables
from weft.kernels.gpu.layout import Options
from weft.planning.attention_plan import plan_attention
from weft.planning.problem import Problem
from weft.target import GPU


def test_sums_of_the_pairs_of_tiles():
    shape, heads = (14, 14), 2
    pattern = weft.product([weft.documents([3, 7, 4])] * 2, shape)
    plan = plan_attention(pattern, Problem(2, heads, heads, 196, 196, 16, 16, "bfloat16", "cuda"), GPU)
    table, tiles = jnp.zeros((heads, 13, 13), jnp.float32), plan.components
    options = Options(1.0, deterministic=False, score=weft.bias.grid(table, shape).text, wanted=(True,))
    sums = np.random.default_rng(0).standard_normal((3, heads, *tiles.live.shape)) * tiles.live
    truth = np.zeros((heads, 13, 13))
    for tile, row, column in np.argwhere(tiles.live):
        q, k = tiles.queries[tile, row], tiles.keys[tile, column]
        truth[:, k // 14 - q // 14 + 6, k % 14 - q % 14 + 6] += sums[:, :, tile, row, column].sum(0)
    (found,) = gradients_of_tables(options, [table], {"tiles_0": jnp.asarray(sums, jnp.float32)}, plan)
    np.testing.assert_allclose(np.asarray(found), truth, atol=1e-4)
