"""Sinks as low as numbers go, for none: a row without keys has its sink for lse, and no gradient of its pairs comes of
that; all other results are the same, bit for bit, as with sinks of minus infinity.
"""

from dataclasses import replace

import pytest
import torch
from tests.tiers import every

import weft

from .compare import BACKENDS, FEW, Case, generator, qkv
from .test_group_queries import HOPPER

AT = (72, 72)
PATTERNS = {
    "grid": weft.product([weft.full(), weft.causal(-1) & weft.chunks(3)], (8, 9)),
    "grid of short rows": weft.product([weft.causal(-1), weft.causal(-2)], (8, 9)),
    "line": weft.causal(-1) & weft.window(left=30),
    "blocks": weft.random_blocks(16, 1) & weft.causal(-20),
}
SINKS = (-1e30, -1e37, -3e37, -2e38, torch.finfo(torch.float32).min)
KINDS = [(torch.float32, 16), (torch.float16, 128), (torch.bfloat16, 64)][: 2 if FEW else 3]
BY_GROUPS = {
    "a window": weft.causal(-1) & weft.window(left=100),
    "half of all": weft.causal(-1),
    "few keys beside a window": weft.causal(-1) & (weft.window(left=100) | weft.prefix(4)),
    "chunks": weft.causal(-1) & weft.chunks(256),
}
OPTIONS = [{}, {"softcap": 5.0}, {"scale": 1e-9}, {"scale": -0.5}]


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("name", every(3, PATTERNS))
@pytest.mark.parametrize("backend", BACKENDS)
def test_low_sinks_are_none(backend, name, kind, options, deterministic):
    dtype, dim = kind
    tensors = qkv(generator(f"low sinks {name}"), AT, dtype, heads=(1, 1), dims=(dim, dim), batch=1)
    case = Case(PATTERNS[name], tensors, options=options, backend=backend, deterministic=deterministic)
    truth = _with_sink(case, -torch.inf)
    alone = truth["lse"] == -torch.inf
    assert alone.any()
    for sink in SINKS[-1:] if FEW else SINKS:
        found = _with_sink(case, sink)
        assert (found["lse"][alone] == sink).all()
        assert torch.equal(found["lse"][~alone], truth["lse"][~alone])
        for one in ("out", "dq", "dk", "dv"):
            assert not found[one].isnan().any(), (one, sink)
            if deterministic or one != "dq":  # which is summed in any order on a GPU
                assert torch.equal(found[one], truth[one]), (one, sink)


@pytest.mark.gpu
@pytest.mark.skipif(not HOPPER, reason="no Hopper card")
@pytest.mark.parametrize("name", BY_GROUPS)
def test_low_sinks_are_none_where_warp_groups_specialise(name):
    tensors = qkv(generator(f"low sinks {name}"), (1024, 1024), torch.bfloat16, heads=(4, 4), dims=(64, 64), batch=1)
    case = Case(BY_GROUPS[name], tensors, backend="triton", with_lse=False)
    truth, *found = (_with_sink(case, sink) for sink in (-torch.inf, *SINKS))
    assert not case.live.any(-1).all()
    for one in ("out", "dq", "dk", "dv"):
        assert all(torch.equal(other[one], truth[one]) for other in found), one


def _with_sink(case, sink):
    sinks = torch.full((case.tensors[0].shape[1],), sink)
    return replace(case, options={**case.options, "sinks": sinks}).weft()
