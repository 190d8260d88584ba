# ruff: noqa: N802 - names of the library
"""What cuBLASLt is asked for, by a stand-in that follows its rules on the CPU; and the library itself on a card."""

import ctypes
from types import SimpleNamespace

import pytest
import torch

from weft.fusion import cublaslt, kernels
from weft.fusion.kernels import LibraryCall, ProductSpec

M, K, N = 24, 16, 40
SIZES = {torch.float16: 2, torch.bfloat16: 2}


class StandIn:
    """cuBLASLt, for descriptors and for matrices by columns, in memory of the CPU."""

    def __init__(self):
        self.made, self.refuses = {}, ()

    def _new(self, place, what):
        self.made[len(self.made) + 1] = what
        place._obj.value = len(self.made)
        return 0

    def cublasLtMatmulDescCreate(self, place, compute, scale):
        return self._new(place, {"compute": compute.value, "scale": scale.value})

    def cublasLtMatrixLayoutCreate(self, place, kind, rows, cols, apart):
        return self._new(place, (kind.value, rows.value, cols.value, apart.value))

    def cublasLtMatmulPreferenceCreate(self, place):
        return self._new(place, {})

    def cublasLtMatmulPreferenceDestroy(self, preference):
        return 0

    def cublasLtMatmulDescSetAttribute(self, target, attribute, x, size):
        assert size.value == {3: 4, 7: 4, 8: 8}[attribute.value]
        self.made[target.value][attribute.value] = x._obj.value
        return 0

    def cublasLtMatmulPreferenceSetAttribute(self, target, attribute, x, size):
        assert (attribute.value, size.value) == (1, 8)
        return 0

    def cublasLtMatmulAlgoGetHeuristic(self, *args):
        *_, asked, found, count = args
        count._obj.value = min(2, asked.value)
        for one in found[:2]:
            one.workspace = 64
        return 0

    def cublasLtMatmul(self, handle, operation, alpha, a, at_a, b, at_b, beta, c, at_c, d, at_d, algorithm, *_):
        if self.refuses:
            return self.refuses
        given = self.made[operation.value]
        first, second, third = (self._matrix(x, at) for x, at in ((a, at_a), (b, at_b), (c, at_c)))
        first = first.T if given.get(3) else first
        found = alpha._obj.value * (first.double() @ second.double()) + beta._obj.value * third.double()
        if given.get(7) == 4:
            bias = SimpleNamespace(value=given[8])
            found += self._matrix(bias, None, (self.made[at_d.value][0], found.shape[0], 1, found.shape[0])).double()
        result = self._matrix(d, at_d)
        result.copy_(found.to(result.dtype))
        return 0

    def _matrix(self, pointer, at, layout=None):
        kind, rows, cols, apart = layout or self.made[at.value]
        memory = (ctypes.c_byte * (2 * apart * cols)).from_address(pointer.value)
        dtype = {code: one for one, code in cublaslt.TYPES.items()}[kind]
        return torch.frombuffer(memory, dtype=dtype).view(cols, apart)[:, :rows].T


@pytest.fixture
def library(monkeypatch):
    made = StandIn()
    monkeypatch.setattr(cublaslt, "library", lambda: made)
    monkeypatch.setattr(torch.cuda, "current_blas_handle", lambda: 7)
    monkeypatch.setattr(cublaslt, "_stream", lambda x: 0)
    cublaslt.plan.cache_clear()
    yield made
    cublaslt.plan.cache_clear()


def case(dtype, by_rows, biased, device="cpu", sizes=(M, K, N)):
    """(spec, tensors, what they make in float64)"""
    m, k, n = sizes
    random = torch.Generator().manual_seed(m)
    x, weight, bias, residual = (
        torch.randn(*some, generator=random).to(device, dtype) / 4
        for some in ((2, m // 2, k), (n, k), (n,), (2, m // 2, n))
    )
    expected = x.double() @ weight.double().T + residual.double() + (bias.double() if biased else 0)
    weight = weight.T.contiguous() if by_rows else weight
    spec = ProductSpec(residual=True, biased=biased, by_rows=by_rows)
    return spec, [x, weight, *([bias] if biased else []), residual], expected


@pytest.mark.parametrize("dtype", list(SIZES))
@pytest.mark.parametrize("by_rows", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_a_residual_and_a_bias_in_one_call(library, dtype, by_rows, biased):
    spec, tensors, expected = case(dtype, by_rows, biased)
    assert [one.rank for one in kernels.libraries(spec)] == list(range(cublaslt.ALGORITHMS))
    call = LibraryCall(spec, tensors, 1)
    assert not call.compile() and "proposes 2" in LibraryCall(spec, tensors, 2).compile()
    (found,) = call.run()
    assert torch.equal(found, expected.to(dtype))


def test_rows_apart_and_a_bias_that_begins_anywhere(library):
    spec, (x, weight, bias, residual), expected = case(torch.float16, False, True)
    wide = torch.zeros(M, 2 * K, dtype=x.dtype)
    wide[:, :K] = x.reshape(M, K)
    moved = torch.zeros(N + 1, dtype=x.dtype)[1:].copy_(bias)
    (found,) = LibraryCall(spec, [wide[:, :K], weight, moved, residual.reshape(M, N)]).run()
    assert torch.equal(found, expected.reshape(M, N).half())


def test_a_refusal_is_said(library):
    library.refuses = 15
    spec, tensors, _ = case(torch.float16, False, True)
    with pytest.raises(RuntimeError, match="cublasLtMatmul returned 15"):
        LibraryCall(spec, tensors).run()


def test_without_the_library_there_is_no_candidate(monkeypatch):
    monkeypatch.setattr(cublaslt, "library", lambda: None)
    assert not kernels.libraries(ProductSpec(residual=True))
    assert not kernels.libraries(ProductSpec("silu", gated=True))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", list(SIZES))
@pytest.mark.parametrize("by_rows", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_on_a_card(dtype, by_rows, biased):
    spec, tensors, expected = case(dtype, by_rows, biased, "cuda", (2 * M, 8 * K, 16 * N))
    count = cublaslt.proposed(*LibraryCall(spec, tensors)._matrices(), by_rows)
    assert count
    for rank in range(count):
        (found,) = LibraryCall(spec, tensors, rank).run()
        assert (found.double() - expected).abs().max() <= 2 * torch.finfo(dtype).eps * expected.abs().max(), rank
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (found,) = LibraryCall(spec, tensors).run()
    tensors[-1].add_(1)
    graph.replay()
    assert (found.double() - expected - 1).abs().max() <= 4 * torch.finfo(dtype).eps * expected.abs().max()
