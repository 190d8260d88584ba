"""Every named problem: its pattern is its formula, and its sizes are the published ones."""

import numpy as np
import pytest
import torch

from weft.testing.masks import Band, Documents, Neighborhood
from weft.testing.workloads import TAGS, WORKLOADS, named

# Live pairs in per cent, as published with the figures of other libraries.
SHARES = {
    "dense": 100, "dense_d64": 100, "causal": 50, "causal_window_1024": 3.08, "window_pm256": 3.11,
    "longformer_w512_g64": 3.87, "dilated_w512_d4": 3.03, "strided_l128_s128": 1.16, "chunk_2048_causal": 3.13,
    "na2d_128x128_k21": 2.69, "na3d_30x48x80_k18x24x24": 9.0, "document_causal": 12.4,
}  # fmt: skip


def oracle(workload, table, arange):
    """(heads, M, N) by the formula; one head where all are alike."""
    predicate = workload.predicate(table)
    q, k = arange(workload.m)[:, None], arange(workload.n)[None, :]
    heads = range(workload.q_heads if workload.per_head else 1)
    masks = [np.asarray(predicate(0, table(head), q, k)) for head in heads]
    return np.stack([np.broadcast_to(mask, (workload.m, workload.n)) for mask in masks])


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_pattern_is_the_formula(name):
    small = WORKLOADS[name].small()
    dense = small.make().to_dense(small.m, small.n)
    expected = oracle(small, np.asarray, np.arange)
    assert expected.any()
    np.testing.assert_array_equal(dense.reshape(expected.shape), expected)
    assert small.nnz == small.batch * expected.sum() * (1 if small.per_head else small.q_heads)


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_formula_means_the_same_in_torch(name):
    small = WORKLOADS[name].small()
    np.testing.assert_array_equal(oracle(small, torch.as_tensor, torch.arange), oracle(small, np.asarray, np.arange))


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_whole_problem_agrees_with_the_formula_on_samples(name):
    w = WORKLOADS[name]
    pattern, predicate, rng = w.make(), w.predicate(), np.random.default_rng(1)
    q, k = rng.integers(0, w.m, 4096), rng.integers(0, w.n, 4096)
    near = np.clip(q + (w.n - w.m) + rng.integers(-1100, 1100, 4096), 0, w.n - 1)  # where most edges lie
    for keys in (k, near):
        for head in (0, w.q_heads - 1):
            np.testing.assert_array_equal(pattern.contains(q, keys, w.m, w.n, 0, head), predicate(0, head, q, keys))


def test_the_core_dozen_has_the_published_sizes():
    core = {name: round(100 * w.share, 2) for name, w in WORKLOADS.items() if "core" in w.tags}
    assert core == pytest.approx(SHARES, rel=0.005)
    assert WORKLOADS["na3d_30x48x80_k18x24x24"].shape == "(1,24,115200,128)"


def test_names_tags_and_sizes():
    assert len(WORKLOADS) > 60
    assert set(TAGS) >= {"core", "decoder", "grid", "decode", "cpu", "scaling"}
    assert not set(TAGS) & set(WORKLOADS), "a name that is a tag too cannot be asked for alone"
    assert [WORKLOADS[name].n for name in WORKLOADS if "scaling" in WORKLOADS[name].tags] == [
        1 << power for power in range(12, 21)
    ]
    for w in WORKLOADS.values():
        assert w.q_heads % w.kv_heads == 0
        assert max(w.small().m, w.small().n) <= 640
    with pytest.raises(KeyError):
        named("causal.tiny")


def test_operations_and_bytes():
    w = WORKLOADS["causal"]
    assert w.flops("fwd") == 4 * 128 * 16 * 16384 * 16385 // 2
    assert w.flops("bwd") * 2 == w.flops("fwd") * 5
    assert w.nbytes("fwd") == 4 * 16 * 16384 * 128 * 2


def test_reduced_masks_keep_their_kind():
    assert WORKLOADS["dilated_w512_d4"].small().mask == Band(32, 32, 4)
    assert isinstance(WORKLOADS["packed_files_64k"].small().mask, Documents)
    assert WORKLOADS["flux_4k_w80_st16"].small().mask == Neighborhood((23, 23), (7, 7), (7, 7), (1, 1))
