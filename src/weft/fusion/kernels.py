"""Launches of the kernels in `weft.kernels.gpu.gemm` on tensors. Triton is imported when one is first asked for."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft.fusion import cublaslt
from weft.kernels.gpu.gemm.config import ALIGNED, Card, Config
from weft.settings import interpreted
from weft.torch import card

DTYPES = (torch.float16, torch.bfloat16)
FARTHEST = ALIGNED << 31  # bytes that places in steps of ALIGNED reach, as integers of 32 bits


@dataclass(frozen=True)
class ProductSpec:
    """What a product does; `weft.kernels.gpu.gemm.meaning.product`. by_rows: weights are (k, n). keeps: it also gives
    `meaning.before`, for gradients.
    """

    activation: str = ""
    gated: bool = False
    biased: bool = False
    residual: bool = False
    by_rows: bool = False
    keeps: bool = False

    @property
    def beside(self) -> int:
        """How many tiles beside that of the result are loaded or stored."""
        return self.residual + (1 + self.gated) * self.keeps


@dataclass(frozen=True)
class ProjectionsSpec:
    """What the products before attention do. d: channels of a head. tables: cos and sin are given. normed: heads of
    query and key are divided by their root mean square with this epsilon, times weights that are given.
    """

    d: int
    biased: bool = False
    tables: bool = False
    interleaved: bool = False
    by_rows: bool = False
    normed: bool = False
    epsilon: float = 0.0

    @property
    def by_head(self) -> bool:
        """Whether something is done to whole heads."""
        return self.tables or self.normed


@dataclass(frozen=True)
class Library:
    """cuBLASLt's own epilogue, in place of a tiling. rank: of its algorithm, among those that it proposes."""

    name: str = "cuBLASLt's epilogue"
    rank: int = 0

    def __str__(self) -> str:
        return self.name + (f", algorithm {self.rank + 1}" if self.rank else "")


def libraries(spec: ProductSpec | ProjectionsSpec) -> list[Library]:
    """Ways in which cuBLASLt computes a product with what follows it. That is a residual with or without a bias, or a
    bias with ReLU or GELU by tanh.
    """
    if isinstance(spec, ProjectionsSpec) or spec.gated or spec.keeps:
        return []
    if spec.residual:
        there = not spec.activation and cublaslt.library() is not None
        return [Library(rank=rank) for rank in range(cublaslt.ALGORITHMS)] if there else []
    return [Library()] if spec.biased and spec.activation in ("relu", "gelu_tanh") else []


@dataclass(frozen=True)
class LibraryCall:
    """A call of cuBLASLt: x, weight, then as far as spec has them bias and residual."""

    spec: ProductSpec
    tensors: list[Tensor]
    rank: int = 0

    def run(self) -> tuple[Tensor, ...]:
        """Make it; the result."""
        x, weight, *_ = self.tensors
        n = weight.shape[1 if self.spec.by_rows else 0]
        out = self._added() if self.spec.residual else self._activated()
        return (out.view(*x.shape[:-1], n),)

    def _activated(self) -> Tensor:
        x, weight, bias = self.tensors
        factor = weight if self.spec.by_rows else weight.t()
        rows = x.reshape(-1, x.shape[-1])
        out: Tensor = torch._addmm_activation(bias, rows, factor, use_gelu=self.spec.activation == "gelu_tanh")
        return out

    def _added(self) -> Tensor:
        return cublaslt.product(*self._matrices(), self.spec.by_rows, self.rank)

    def _matrices(self) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        x, weight, *more, residual = self.tensors
        rows = x.reshape(-1, x.shape[-1])
        return rows, weight, more[0] if more else None, residual.reshape(-1, residual.shape[-1])

    def compile(self) -> str:
        """There is nothing to compile; why there is no such algorithm, "" if there is."""
        if not self.spec.residual:
            return ""
        try:
            count = cublaslt.proposed(*self._matrices(), self.spec.by_rows)
        except RuntimeError as error:
            return str(error)
        return "" if self.rank < count else f"cuBLASLt proposes {count} algorithms"


class Started(NamedTuple):
    """A launch at known addresses: start(*told). kept: what `told` points into."""

    start: Callable[..., Any]
    told: tuple[Any, ...]
    kept: Any


@dataclass(frozen=True)
class Prepared:
    """A launch: results are allocated, and nothing runs yet."""

    kernel: Any
    grid: tuple[int]
    args: tuple[Any, ...]
    options: dict[str, Any]
    results: tuple[Tensor, ...]

    def run(self) -> tuple[Tensor, ...]:
        """Launch it; the results."""
        self.kernel[self.grid](*self.args, **self.options)
        return self.results

    def started(self, stream: int) -> Started | None:
        """The launch past Triton's own Python, which encodes descriptors anew each time; None where only `run` works.

        It is for memory at these addresses, and compiles nothing after `run`.
        """
        from weft.torch import driver
        from weft.torch.launcher import DescriptorLayout

        if driver.library() is None:
            return None
        compiled = self.kernel.warmup(*self.args, grid=self.grid, **self.options)
        kinds = list(compiled.src.signature.values())  # of constants and of what is None, "constexpr"
        told = [(kind, x) for kind, x in zip(kinds, self.args, strict=False) if kind != "constexpr"]
        boxes = {
            at: DescriptorLayout(tuple(x.shape), tuple(x.strides))
            for at, (_, x) in enumerate(told)
            if hasattr(x, "base")
        }
        function = driver.function_of(compiled, self.results[0].device.index)
        facts = compiled.metadata.tensordesc_meta or ()
        if function is None or len(facts) != len(boxes):
            return None
        launch = driver.launch_of(function, [kind for kind, _ in told], boxes, facts)
        if launch is None:
            return None
        values = [x.data_ptr() if isinstance(x, Tensor) else x for x in (getattr(x, "base", x) for _, x in told)]
        return Started(*launch.invocation((*self.grid, 1, 1), stream, values), launch)

    def reads_only(self, tensors: Sequence[Tensor]) -> bool:
        """Whether all that it reads and writes lies in the memory of these tensors and its results."""
        there = {x.untyped_storage().data_ptr() for x in (*tensors, *self.results)}
        mine = (getattr(x, "base", x) for x in self.args)
        return all(x.untyped_storage().data_ptr() in there for x in mine if isinstance(x, Tensor))

    def compile(self) -> str:
        """Have the kernel compiled; why it cannot be, "" if it can."""
        try:
            self.kernel.warmup(*self.args, grid=self.grid, **self.options)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""


Runnable = Prepared | LibraryCall


def compile_all(launches: Iterable[Runnable]) -> list[str]:
    """`compile` of each, many at a time: LLVM and the assembler do not hold Python's lock."""
    launches = list(launches)
    device = torch.cuda.current_device()
    with ThreadPoolExecutor(
        min(len(launches), os.cpu_count() or 1) or 1, "weft-compile", torch.cuda.set_device, (device,)
    ) as threads:
        return list(threads.map(lambda one: one.compile(), launches))


def reason_against(tensors: list[Tensor | None], weights: Sequence[Tensor] = ()) -> str:
    """Why tensor descriptors cannot reach these tensors, whose last axis they walk; "" where they can. weights: those
    among them that one descriptor reaches.
    """
    begins = sorted(w.data_ptr() for w in weights)
    if begins and begins[-1] - begins[0] >= FARTHEST:
        return f"its weights lie {begins[-1] - begins[0]:,} bytes apart"
    if len(set(begins)) < len(begins):
        return "two of its weights are one"
    if len({w.stride() for w in weights}) > 1:
        return "its weights have rows of several lengths"
    for x in tensors:
        if x is None:
            continue
        if x.dtype not in DTYPES and not interpreted():
            return f"its tensors are {x.dtype}, and the templates multiply 16 bits"
        if x.stride(-1) != 1 or any(n * x.element_size() % ALIGNED for n in x.stride()[:-1]):
            return f"its rows lie apart by what is no multiple of {ALIGNED} bytes"
        if x.data_ptr() % ALIGNED:
            return f"a tensor does not begin at a multiple of {ALIGNED} bytes"
    return ""


Results = Sequence[Tensor] | None


def product(spec: ProductSpec, config: Config, tensors: list[Tensor], results: Results = None) -> Prepared:
    """(..., n) of x (..., k), as one result; where it keeps what is before its activation, (1 or 2, ..., n) as another.

    tensors: x, weight, then as far as spec has them gate, bias, gate's bias, residual. results: room for it.
    """
    from weft.kernels.gpu.gemm.product import product as kernel

    x, weight, *more = tensors
    gate = more.pop(0) if spec.gated else None
    bias = more.pop(0) if spec.biased else None
    gate_bias = more.pop(0) if spec.biased and spec.gated else None
    residual = more.pop(0) if spec.residual else None
    rows = x.reshape(-1, x.shape[-1])
    (m, k), n = rows.shape, weight.shape[1 if spec.by_rows else 0]
    results = room(spec, tensors) if results is None else results
    out, kept = results[0], results[1].view(1 + spec.gated, m, n) if spec.keeps else None
    of_x, of_weights, of_out = _blocks(config, spec.by_rows, spec.gated)
    which = None
    if gate is None:
        weights = _together([weight], n * k, of_weights)
    else:
        first, second = sorted((weight, gate), key=Tensor.data_ptr)
        weights, which = _together([first, second], _apart(first, second), of_weights), int(gate is second)
    args = (
        _box(rows, of_x), weights, _box(None if residual is None else residual.reshape(-1, n), of_out),
        _box(out.view(-1, n), of_out), _box(kept, [1, *of_out]), bias, gate_bias, None, None, m, n, k, 0, 0, 0.0,
    )  # fmt: skip
    options = {"ACTIVATION": spec.activation, "GATE": which, "BY_ROWS": spec.by_rows, "PERSISTENT": config.persistent}
    options["EVEN"] = n % config.cols == 0
    tiles = -(-m // config.rows) * -(-n // config.cols)
    programs = config.programs(tiles, 1 + spec.gated, card_of(x.device), spec.beside)
    return Prepared(kernel, (programs,), args, options | _tiling(config), tuple(results))


def projections(spec: ProjectionsSpec, config: Config, tensors: list[Tensor], results: Results = None) -> Prepared:
    """q, k and v beside each other (..., q_n + 2 kv_n), of x (..., depth), which has batch rows and tokens before.

    tensors: x, three weights, then as far as spec has them three biases and two norms (d,). Then cos and sin (batch
    rows or 1, tokens, d). results: room for them.
    """
    from weft.kernels.gpu.gemm.projections import projections as kernel

    x, *weights = tensors[:4]
    more = list(tensors[4:])
    biases = [more.pop(0) for _ in range(3)] if spec.biased else [None] * 3
    norms = [more.pop(0) for _ in range(2)] if spec.normed else [None] * 2
    cos, sin = (more.pop(0), more.pop(0)) if spec.tables else (None, None)
    rows, length = x.reshape(-1, x.shape[-1]), x.shape[-2]
    (m, depth), axis = rows.shape, 1 if spec.by_rows else 0
    widths = [w.shape[axis] for w in weights]
    results = room(spec, tensors) if results is None else results
    out = results[0]
    of_x, of_weights, of_out = _blocks(config, spec.by_rows)
    batch_stride = 0 if cos is None or cos.shape[0] == 1 else length * spec.d
    first = min(weights, key=Tensor.data_ptr)
    places = [_apart(first, w) * w.element_size() // ALIGNED for w in weights]
    args = (
        _box(rows, of_x), _together(weights, ALIGNED // x.element_size(), of_weights, 1 + max(places)),
        _box(out.view(-1, sum(widths)), of_out), *biases, *norms, cos, sin,
        *places, m, widths[0], widths[1], depth, length, batch_stride, spec.epsilon,
    )  # fmt: skip
    options = {"D": spec.d, "INTERLEAVED": spec.interleaved, "BY_ROWS": spec.by_rows, "PERSISTENT": config.persistent}
    options |= _tiling(config)
    programs = config.programs(-(-m // config.rows) * (sum(widths) // config.cols), 1, card_of(x.device), spec.by_head)
    return Prepared(kernel, (programs,), args, options, tuple(results))


def room(spec: ProductSpec | ProjectionsSpec, tensors: Sequence[Tensor]) -> list[Tensor]:
    """For what a kernel gives."""
    x, weights = tensors[0], tensors[1:4] if isinstance(spec, ProjectionsSpec) else tensors[1:2]
    sizes = *x.shape[:-1], sum(w.shape[1 if spec.by_rows else 0] for w in weights)
    found = [x.new_empty(sizes)]
    if isinstance(spec, ProductSpec) and spec.keeps:
        found.append(x.new_empty((1 + spec.gated, *sizes)))
    return found


@cache
def card_of(device: torch.device) -> Card:
    """What tilings are asked for."""
    if device.type != "cuda":
        return Card(2, 1 << 20)  # an interpreter's
    index = torch.cuda.current_device() if device.index is None else device.index
    return Card(torch.cuda.get_device_properties(index).multi_processor_count, card.shared_memory(index))


def _blocks(config: Config, by_rows: bool, gated: bool = False) -> tuple[list[int], list[int], list[int]]:
    """Blocks of x, of weights, and of results."""
    weights = [1, config.depth, config.cols] if by_rows else [1 + gated, config.cols, config.depth]
    return [config.rows, config.depth], weights, [config.rows, config.stored]


def _apart(first: Tensor, second: Tensor) -> int:
    """How many numbers after the first tensor the second begins."""
    return (second.data_ptr() - first.data_ptr()) // first.element_size()


def _together(weights: list[Tensor], apart: int, block: list[int], places: int = 0) -> Any:
    """A descriptor (places, n, k) of matrices that begin `apart` numbers after each other, wherever they lie. It has as
    many as there are weights, unless places are told. Of several widths it has the largest.
    """
    from triton.tools.tensor_descriptor import TensorDescriptor

    first = min(weights, key=Tensor.data_ptr)
    sizes = [max(w.shape[axis] for w in weights) for axis in (0, 1)]
    return TensorDescriptor(first, [places or len(weights), *sizes], [apart, first.stride(0), 1], block)


def _box(x: Tensor | None, block: list[int]) -> Any:
    if x is None:
        return None
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor(x, list(x.shape), list(x.stride()), block)


def _tiling(config: Config) -> dict[str, int]:
    return {
        "ROWS": config.rows, "COLS": config.cols, "DEPTH": config.depth, "STORED": config.stored, "GROUP": config.group,
        "num_warps": config.warps, "num_stages": config.stages,
    }  # fmt: skip
