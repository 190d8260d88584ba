"""benchmarks/host.py without a GPU: calls go the short way, launch as often as on one, and nothing stays replaced."""

import os
from pathlib import Path

import pytest
import torch

from weft.torch import bind

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="here launches do something")


@pytest.fixture
def host(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import host

    return host


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processes have no affinity here")
def test_one_core_is_for_all_threads_and_for_a_while(host):
    tasks = [int(task.name) for task in Path("/proc/self/task").iterdir()]
    before = [os.sched_getaffinity(task) for task in tasks]
    with host.one_core():
        inside = {tuple(os.sched_getaffinity(task)) for task in tasks}
    assert len(inside) == 1 and len(next(iter(inside))) == 1
    assert [os.sched_getaffinity(task) for task in tasks] == before


def test_calls_launch_what_a_gpu_would_be_given(host, monkeypatch):
    names, before = [], (bind.kernel_of, bind.gpu_of, bind.is_capturing)

    class Kernel(host.Nothing):
        def __init__(self, source, device):
            self.run = lambda *values: names.append(source.name.partition("_")[0])

    monkeypatch.setattr(host, "Nothing", Kernel)
    found = host.measure(calls=1, rounds=2)
    alone = {"forward", "forward, recorded", "gradients", "gradients of an empty function"}
    masks = {f"forward, the mask {name}" for name in host.GIVEN}
    assert set(found) == alone | masks | {host.IN_LAYERS, f"{host.IN_LAYERS}, an empty function", host.LOOP}
    assert all(len(us) == 2 and min(us) > 0 for us in found.values())
    each = 2 * (host.WARM + 1)
    launched = {name: names.count(name) for name in names}  # of a short window
    assert launched == {"forward": (2 + len(masks)) * each + 1 + host.LAYERS, "fused": each + each * host.LAYERS}
    assert (bind.kernel_of, bind.gpu_of, bind.is_capturing) == before
