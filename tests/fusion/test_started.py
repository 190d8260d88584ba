"""Launches of products past Triton's own Python: compiled for a GPU that is not there, told to a driver that notes."""

from types import SimpleNamespace

import pytest
import torch
from tests.torch.test_driver import Library, parameters_of

from weft.fusion import kernels, segment
from weft.fusion.kernels import ProductSpec, ProjectionsSpec
from weft.fusion.segment import Fused
from weft.kernels.gpu.gemm.config import Card, Config
from weft.settings import interpreted

triton = pytest.importorskip("triton", reason="it compiles the kernels")
from triton.backends.compiler import GPUTarget  # noqa: E402

from weft.torch import driver  # noqa: E402

pytestmark = [pytest.mark.skipif(interpreted(), reason="nothing is compiled"), pytest.mark.more]
TILE = Config(64, 64, 64, 4, 3)
M, K, N = 128, 64, 192


class Driver:
    """What Triton asks before it compiles."""

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)


@pytest.fixture
def compiled(monkeypatch):
    """Products are compiled for sm_90."""
    monkeypatch.setattr(kernels, "card_of", lambda device: Card(132, 227 << 10))
    monkeypatch.setattr(triton.runtime.driver, "_active", Driver(), raising=False)
    monkeypatch.setattr(driver, "encoded", lambda box, facts, address: bytes([address % 251]) * driver.DESCRIPTOR)
    yield
    driver._start.cache_clear()


def half(*sizes):
    return torch.randn(*sizes).half()


def tensors_of(spec):
    if isinstance(spec, ProjectionsSpec):
        tables = [half(1, M // 2, spec.d) for _ in range(2 * spec.tables)]
        return [
            half(2, M // 2, K),
            *(half(N, K) for _ in range(3)),
            *(half(N) for _ in range(3 * spec.biased)),
            *tables,
        ]
    some = [half(2, M // 2, K), *(half(N, K) for _ in range(1 + spec.gated)), *(half(N) for _ in range(spec.biased))]
    return some + [half(2, M // 2, N)] * spec.residual


SPECS = [
    ProductSpec("gelu", biased=True),
    ProductSpec("silu", gated=True),
    ProductSpec("silu", gated=True, keeps=True),
    ProductSpec(biased=True, residual=True),
    ProjectionsSpec(64, biased=True),
    ProjectionsSpec(64, tables=True),
]


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_a_driver_is_told_what_a_kernel_reads(compiled, monkeypatch, spec):
    tensors = tensors_of(spec)
    made = segment.prepared(spec, TILE, tensors)
    whole = made.kernel.warmup(*made.args, grid=made.grid, **made.options)
    library = Library(parameters_of(whole.asm["ptx"]))
    monkeypatch.setattr(driver, "library", lambda: library)
    driver._start.cache_clear()
    found = made.started(9)
    assert found is not None, "the function takes other arguments"
    found.start(*found.told)
    ((_, shape, _, memory),) = library.launches
    assert shape == ((made.grid[0], 1, 1), (TILE.warps * 32, 1, 1), whole.metadata.shared, 9)
    numbers = [int.from_bytes(memory[at : at + size], "little") for at, size in parameters_of(whole.asm["ptx"])]
    pointers = {x.data_ptr() for x in tensors if x.dim() == 1} | {
        x.data_ptr() for x in tensors[4:] if spec == SPECS[-1]
    }
    assert pointers <= set(numbers)
    boxes = [x for x in made.args if hasattr(x, "base")]
    heads = [(at, size) for at, size in parameters_of(whole.asm["ptx"]) if size == driver.DESCRIPTOR]
    assert [memory[at] for at, _ in heads] == [x.base.data_ptr() % 251 for x in boxes]
    assert M in numbers and K in numbers


def test_calls_are_found_by_addresses(monkeypatch):
    """As on a GPU: the first call is prepared, others start what is kept, and other memory is another call."""
    spec, started, prepared = ProductSpec("gelu", biased=True), [], []
    monkeypatch.setattr(kernels, "reason_against", lambda *_: "")
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 5, raising=False)
    monkeypatch.setattr(segment, "is_capturing", lambda: False)
    room = half(2, M // 2, N)
    monkeypatch.setattr(kernels, "room", lambda spec, tensors: [room])

    class Made(kernels.Prepared):
        def run(self):
            prepared.append(self)
            return self.results

        def started(self, stream):
            return kernels.Started(started.append, (stream,), None)

    monkeypatch.setattr(
        segment, "prepared", lambda spec, config, tensors, room: Made(None, (1,), tuple(tensors), {}, tuple(room))
    )
    one = Fused(spec, torch.nn.Identity(), TILE)
    monkeypatch.setattr(segment, "_fused", SimpleNamespace(named=lambda name: one))
    tensors = [x.as_subclass(OnACard) for x in tensors_of(spec)]
    for _ in range(3):
        (out,) = segment._forward(tensors, "")
        assert out is room
    assert len(prepared) == 1 and started == [5, 5]
    segment._forward([tensors[0].clone().as_subclass(OnACard), *tensors[1:]], "")
    assert len(prepared) == 2 and len(one.launches) == 2


def test_what_is_copied_on_the_way_is_not_kept():
    x, weight, bias = tensors_of(ProductSpec("gelu", biased=True))
    for some, kept in (([x, weight, bias], True), ([x.transpose(0, 1), weight, bias], False)):
        made = kernels.product(ProductSpec("gelu", biased=True), TILE, some)
        assert made.reads_only(some) == kept


class OnACard(torch.Tensor):
    """A tensor that says that it is on a GPU."""

    is_cuda = True
