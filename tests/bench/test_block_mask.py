"""The block mask made in rows is the one that FlexAttention makes, of every tensor in it."""

from dataclasses import replace

import pytest
import torch
from tests.tiers import every
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from weft.bench.inputs import Tensors
from weft.bench.peers import block_mask as made
from weft.testing.workloads import WORKLOADS


def check(workload, size=None):
    """Both masks have the same sizes and tensors, those of the backward among them."""
    tensors = Tensors(workload, "cpu")
    mine, predicate = made.block_mask(workload, tensors), workload.predicate(tensors.table)
    heads, size = workload.q_heads if workload.per_head else None, size or made.BLOCK
    expected = create_block_mask(predicate, None, heads, workload.m, workload.n, device="cpu", BLOCK_SIZE=size)
    assert isinstance(mine, BlockMask)
    assert mine.seq_lengths == expected.seq_lengths
    assert mine.BLOCK_SIZE == expected.BLOCK_SIZE
    for name in ("kv_num_blocks", "kv_indices", "q_num_blocks", "q_indices"):
        for tensor in (name, f"full_{name}"):
            found, wanted = getattr(mine, tensor), getattr(expected, tensor)
            assert found.dtype == wanted.dtype
            assert torch.equal(found, wanted), tensor


@pytest.mark.parametrize("pairs", [1, 1 << 22], ids=["row by row", "at once"])
@pytest.mark.parametrize("name", every(5, WORKLOADS))
def test_every_mask_is_that_of_create_block_mask(name, pairs, monkeypatch):
    monkeypatch.setattr(made, "BLOCK", 32)  # so that small masks have full blocks, and cut ones at the end
    monkeypatch.setitem(made.PAIRS, "cpu", pairs)
    check(WORKLOADS[name].small(), 32)


@pytest.mark.parametrize("m, n", [(700, 700), (512, 640), (100, 1000), (1, 300)])
def test_lengths_that_no_block_divides(m, n):
    check(replace(WORKLOADS["causal_window_1024"], m=m, n=n))
