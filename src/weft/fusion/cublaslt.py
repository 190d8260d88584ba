"""A product with a bias and a residual in one kernel of cuBLASLt. torch reaches it with one of the two alone.

Its matrices are stored by columns, so it is asked for the transpose: out.T = weight x.T + residual.T + bias. The
library is the one that torch has loaded, and its handle is torch's.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from ctypes import byref, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass, field
from functools import cache
from threading import Lock
from typing import Any

import torch
from torch import Tensor

ALIGNED = 16  # bytes, at which pointers begin that an algorithm was chosen for
ROOM = 32 << 20  # bytes that an algorithm may use beside
ALGORITHMS = 8  # the best ones by cuBLASLt's own estimate, that are worth measuring

# Numbers of cublasLt.h and library_types.h.
COMPUTE_FLOAT32, FLOAT32 = 68, 0
TYPES: Mapping[torch.dtype, int] = {torch.float16: 2, torch.bfloat16: 14}
TRANSPOSES_FIRST, EPILOGUE, BIAS_POINTER = 3, 7, 8
ADDS_BIAS = 4
WORKSPACE = 1


class _Algorithm(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", c_uint64 * 8), ("workspace", c_size_t), ("state", c_int), ("waves", c_float),
        ("reserved", c_int * 4),
    )  # fmt: skip


@cache
def library() -> Any:
    """cuBLASLt as torch has loaded it; None where there is none."""
    if torch.version.cuda is None:
        return None
    try:
        return ctypes.CDLL(f"libcublasLt.so.{torch.version.cuda.partition('.')[0]}")
    except OSError:
        return None


def _asked(name: str, *args: Any) -> None:
    """Call a function of the library. Raises RuntimeError."""
    status = getattr(library(), name)(*args)
    if status:
        raise RuntimeError(f"{name} returned {status}")


def _set(target: c_void_p, attribute: int, x: Any, of: str = "MatmulDesc") -> None:
    _asked(f"cublasLt{of}SetAttribute", target, c_int(attribute), byref(x), c_size_t(ctypes.sizeof(x)))


def _layout(dtype: torch.dtype, rows: int, cols: int, apart: int) -> c_void_p:
    """Of a matrix that is stored by columns, which begin `apart` numbers after each other."""
    made = c_void_p()
    _asked(
        "cublasLtMatrixLayoutCreate", byref(made), c_int(TYPES[dtype]), c_uint64(rows), c_uint64(cols), c_int64(apart)
    )
    return made


@dataclass(frozen=True)
class Shape:
    """out (m, n) = x (m, k) @ weight.T, or @ weight where weights are (k, n) `by_rows`. apart: numbers between rows of
    x, weight, residual and out.
    """

    dtype: torch.dtype
    m: int
    n: int
    k: int
    apart: tuple[int, int, int, int]
    by_rows: bool
    biased: bool

    @staticmethod
    def of(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor, by_rows: bool) -> Shape:
        """That of matrices."""
        n = weight.shape[1 if by_rows else 0]
        apart = (x.stride(0), weight.stride(0), residual.stride(0), n)
        return Shape(x.dtype, x.shape[0], n, x.shape[1], apart, by_rows, bias is not None)


@dataclass(eq=False)
class Plan:
    """What cuBLASLt is asked for a shape on a card, and the algorithms that it proposes, the best one first."""

    shape: Shape
    handle: int
    operation: c_void_p = field(default_factory=c_void_p)
    layouts: list[c_void_p] = field(default_factory=list)
    algorithms: list[_Algorithm] = field(default_factory=list)
    lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        shape = self.shape
        _asked("cublasLtMatmulDescCreate", byref(self.operation), c_int(COMPUTE_FLOAT32), c_int(FLOAT32))
        if not shape.by_rows:
            _set(self.operation, TRANSPOSES_FIRST, c_int32(1))
        if shape.biased:
            _set(self.operation, EPILOGUE, c_uint32(ADDS_BIAS))
            _set(self.operation, BIAS_POINTER, c_void_p(ALIGNED))  # nobody reads it yet
        weight = (shape.n, shape.k) if shape.by_rows else (shape.k, shape.n)
        sizes = (weight, (shape.k, shape.m), (shape.n, shape.m), (shape.n, shape.m))
        of_x, of_weight, *others = shape.apart
        for (rows, cols), apart in zip(sizes, (of_weight, of_x, *others), strict=True):
            self.layouts.append(_layout(shape.dtype, rows, cols, apart))
        self.algorithms = self._proposed()

    def _proposed(self) -> list[_Algorithm]:
        preference, found, count = c_void_p(), (_Algorithm * ALGORITHMS)(), c_int()
        _asked("cublasLtMatmulPreferenceCreate", byref(preference))
        _set(preference, WORKSPACE, c_uint64(ROOM), "MatmulPreference")
        _asked(
            "cublasLtMatmulAlgoGetHeuristic", c_void_p(self.handle), self.operation, *self.layouts, preference,
            c_int(ALGORITHMS), found, byref(count),
        )  # fmt: skip
        _asked("cublasLtMatmulPreferenceDestroy", preference)
        return [one for one in found[: count.value] if not one.state]

    def run(self, rank: int, tensors: tuple[Tensor, Tensor, Tensor | None, Tensor], out: Tensor) -> None:
        """Launch an algorithm on the current stream. tensors: x, weight, bias, residual."""
        x, weight, bias, residual = tensors
        one = self.algorithms[rank]
        room = torch.empty(one.workspace, dtype=torch.uint8, device=x.device)
        factor = byref(c_float(1.0))
        with self.lock:  # the operation holds the place of the bias
            if bias is not None:
                _set(self.operation, BIAS_POINTER, c_void_p(bias.data_ptr()))
            first, second, third, result = self.layouts
            _asked(
                "cublasLtMatmul", c_void_p(self.handle), self.operation, factor,
                c_void_p(weight.data_ptr()), first, c_void_p(x.data_ptr()), second,
                factor, c_void_p(residual.data_ptr()), third, c_void_p(out.data_ptr()), result,
                byref(one.algorithm), c_void_p(room.data_ptr()), c_size_t(one.workspace), c_void_p(_stream(x)),
            )  # fmt: skip


def _stream(x: Tensor) -> int:
    return torch.cuda.current_stream(x.device).cuda_stream


@cache
def plan(shape: Shape, handle: int) -> Plan:
    """Made once. handle: of cuBLAS, which stands for one of cuBLASLt and belongs to one card."""
    return Plan(shape, handle)


def proposed(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor, by_rows: bool) -> int:
    """How many algorithms there are. Raises RuntimeError."""
    return len(plan(Shape.of(x, weight, bias, residual, by_rows), torch.cuda.current_blas_handle()).algorithms)


def product(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor, by_rows: bool, rank: int = 0) -> Tensor:
    """(m, n): x (m, k) @ weight (n, k).T + bias (n,) + residual (m, n), by the algorithm of a rank; weights are (k, n)
    `by_rows`. Raises RuntimeError.
    """
    if bias is not None and bias.data_ptr() % ALIGNED:
        bias = bias.clone()
    at = plan(Shape.of(x, weight, bias, residual, by_rows), torch.cuda.current_blas_handle())
    out = x.new_empty((at.shape.m, at.shape.n))
    at.run(rank, (x, weight, bias, residual), out)
    return out
