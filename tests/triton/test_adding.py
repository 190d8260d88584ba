"""Stores of boxes that add: what the PTX of a kernel becomes."""

import pytest

from weft.errors import UnsupportedKernel
from weft.kernels.gpu.compile.adding import rewritten

STORE = "@%p1 cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%rd1, {%r1, %r2, %r3, %r4, %r5}], [%r6];"
LOAD = "@%p1 cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1, {%r2}], [%r3];"


def test_every_store_adds_and_no_load_does():
    found = rewritten("\n".join((STORE, LOAD, STORE))).split("\n")
    assert found[0] == found[2] == STORE.replace(
        "cp.async.bulk.tensor.5d.global.shared::cta.bulk_group",
        "cp.reduce.async.bulk.tensor.5d.global.shared::cta.add.tile.bulk_group",
    )  # fmt: skip
    assert found[1] == LOAD


def test_a_kernel_without_stores_that_are_known_is_refused():
    with pytest.raises(UnsupportedKernel, match="deterministic=True"):
        rewritten(LOAD)
