"""benchmarks/host.py without a GPU: calls go the short way, launch as often as on one, and nothing stays replaced."""

from pathlib import Path

import pytest
import torch

from weft.kernels.triton import launch, run

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="here launches do something")


def test_calls_launch_what_a_gpu_would_be_given(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import host

    names, before = [], (run.kernel_of, run.gpu_of, launch.capturing)

    class Kernel(host.Nothing):
        def __init__(self, spec, device):
            self.run = lambda *values: names.append(spec.direction)

    monkeypatch.setattr(host, "Nothing", Kernel)
    found = host.measure(1)
    alone = {"forward", "forward, recorded", "gradients", "gradients of an empty function"}
    assert set(found) == alone | {host.IN_LAYERS, f"{host.IN_LAYERS}, an empty function"}
    assert all(us > 0 for us in found.values())
    each = host.WARM + 1
    launched = {name: names.count(name) for name in names}  # of a short window
    assert launched == {"forward": 2 * each + 1 + host.LAYERS, "gradients": each + each * host.LAYERS}
    assert (run.kernel_of, run.gpu_of, launch.capturing) == before
