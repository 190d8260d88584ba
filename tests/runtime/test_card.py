"""Which card is at hand, from what its driver says."""

from types import SimpleNamespace

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from weft.errors import UnsupportedKernel
from weft.kernels.backend import BACKENDS, CpuBackend, TritonBackend
from weft.kernels.gpu import __path__ as programs
from weft.target import GPUS, gpu_like
from weft.testing.refusals import refuse
from weft.torch import card


@pytest.mark.parametrize(
    ("name", "architecture", "processors", "known"),
    [
        ("NVIDIA H200", "sm_90", 132, "h200"),
        ("NVIDIA H100 80GB HBM3", "sm_90", 132, "h100"),
        ("NVIDIA A100-SXM4-80GB", "sm_80", 108, "a100"),
        ("NVIDIA B200", "sm_100", 148, "b200"),
        ("AMD Instinct MI300X", "gfx942", 304, "mi300x"),
        ("NVIDIA GeForce RTX 4090", "sm_89", 128, "rtx4090"),
    ],
)
def test_cards_that_are_known(name, architecture, processors, known):
    assert gpu_like(name, architecture, processors) is GPUS[known]


@pytest.mark.parametrize(
    ("name", "architecture", "processors", "near"),
    [
        ("NVIDIA H100 PCIe", "sm_90", 114, "h100"),  # fewer processors than the one that is known
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "sm_89", 76, "rtx4090"),
        ("NVIDIA GH200 480GB", "sm_90", 132, "h200"),
        ("NVIDIA A10G", "sm_86", 80, "rtx4090"),
        ("NVIDIA B300 SXM6", "sm_103", 148, "b200"),
        ("AMD Instinct MI250X", "gfx90a", 110, "mi300x"),
    ],
)
def test_cards_that_are_not_keep_their_name_and_take_the_nearest_clock(name, architecture, processors, near):
    found = gpu_like(name, architecture, processors)
    assert found.name == name and found.processors == processors
    assert found.architecture == GPUS[near].architecture
    assert found.clock == pytest.approx(GPUS[near].clock)
    assert found.bandwidth / processors == pytest.approx(GPUS[near].bandwidth / GPUS[near].processors)


def test_shared_memory_is_the_cards_own():
    assert gpu_like("NVIDIA A10G", "sm_86", 80, 99 << 10).shared == 99 << 10
    assert gpu_like("NVIDIA H200", "sm_90", 132, 228 << 10) is GPUS["h200"]


def at_hand(monkeypatch, name, capability, processors, shared, hip=None):
    """The card that torch and Triton's driver describe so."""
    major, minor = capability
    properties = SimpleNamespace(
        name=name, major=major, minor=minor, multi_processor_count=processors, gcnArchName="gfx90a:xnack-"
    )
    utils = SimpleNamespace(get_device_properties=lambda device: {"max_shared_mem": shared})
    monkeypatch.setattr(card.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(card.torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(card.torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(card.torch.version, "hip", hip)
    monkeypatch.setattr(card.driver, "library", lambda: None)  # as on AMD's, and where CUDA's is old
    monkeypatch.setattr(card.triton_driver, "_active", SimpleNamespace(utils=utils))
    return card.card_of.__wrapped__(0)


@pytest.mark.parametrize(
    ("name", "capability", "shared", "hip"),
    [
        ("NVIDIA GeForce RTX 5090", (12, 0), 99 << 10, None),  # the nearest that is known has 227
        ("NVIDIA A100-SXM4-40GB", (8, 0), 163 << 10, None),
        ("AMD Instinct MI250X", (9, 0), 64 << 10, "6.2"),
    ],
)
def test_shared_memory_is_what_the_driver_says(monkeypatch, name, capability, shared, hip):
    """Whatever torch: what has no room must be refused before it is loaded."""
    found = at_hand(monkeypatch, name, capability, 100, shared, hip)
    assert (found.name, found.gpu.shared, found.gpu.processors) == (name, shared, 100)


@pytest.mark.parametrize(("name", "capability"), [("Tesla T4", (7, 5)), ("Tesla V100-SXM2-16GB", (7, 0))])
def test_cards_that_are_too_old_are_refused(monkeypatch, name, capability):
    said = name, f"{capability[0]}.{capability[1]}", "8.0", "newer"
    refuse(lambda: at_hand(monkeypatch, name, capability, 40, 64 << 10), UnsupportedKernel, said)


def test_versions_name_the_kernels_and_triton(monkeypatch):
    import triton

    found = card.versions()
    assert found == TritonBackend().versions() and found["triton"] == triton.__version__
    assert len(found["kernels"]) == 16 and int(found["kernels"], 16) >= 0
    here = {path.stem for folder in programs for path in card.Path(folder).rglob("*")}
    assert here >= card.APART  # a module that is gone need not be left out


def test_where_no_card_is_at_hand(monkeypatch):
    monkeypatch.setattr(card.torch.cuda, "is_available", lambda: False)
    assert TritonBackend().card("cuda") is None
    assert all(backend.card("cpu") is None for backend in BACKENDS)
    assert CpuBackend().card("cuda") is None
