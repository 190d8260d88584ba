"""Kernels that gather tokens in another order, compiled for Hopper: they keep to their registers where they walk."""

import numpy as np
import pytest
import torch

import weft
from weft.kernels.gpu.compile.load import compile_for
from weft.settings import interpreted

from .resources import TARGETS, resources
from .specs import Call, specs_of

pytestmark = [pytest.mark.more, pytest.mark.skipif(interpreted(), reason="Triton interprets, and compiles nothing")]

IDS = np.random.default_rng(0).integers(0, 64, 16384)
SCATTERED = weft.documents(ids=IDS)
CALLS = {
    "documents": Call(SCATTERED, 16384, 16384, (128, 128), heads=(8, 8), batch=1),
    "documents, heads that share keys": Call(SCATTERED, 16384, 16384, (128, 128), heads=(8, 2), batch=1),
    "causal documents, D=64": Call(weft.causal() & SCATTERED, 16384, 16384, (64, 64), torch.float16, (8, 8), 1),
}


@pytest.mark.parametrize("name", CALLS)
def test_loops_spill_nothing_and_run_products_together(name):
    specs = [spec for spec in specs_of(CALLS[name]) if spec.ordered]
    assert {spec.direction for spec in specs} == {"forward", "dq", "dkdv"}
    for spec in specs:
        found = resources(compile_for(spec, TARGETS["sm_90"]), "sm_90")
        assert found.inside == 0, spec.name
        assert found.waits < 0.5, spec.name
