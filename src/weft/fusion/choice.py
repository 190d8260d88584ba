"""Whether a segment's kernel is faster than what the compiler behind weft makes of the same graph: both are measured.

Each candidate runs in a CUDA graph, so launches cost what they cost there. cuBLAS with the compiler's own kernels is
always a candidate, and what is not faster by MARGIN is left to it. A candidate that fails, or whose results are off,
is dropped and said.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from weft.fusion import evidence, kernels
from weft.fusion.epilogues import Found
from weft.fusion.kernels import Library, ProductSpec, ProjectionsSpec, Runnable
from weft.fusion.model import breaks_even
from weft.fusion.nodes import hint, value
from weft.fusion.segment import Tiling, flat, multiplied, prepared
from weft.fusion.settings import Settings
from weft.fusion.whole import Settled
from weft.kernels.gpu.gemm.config import ALIGNED, configs
from weft.settings import interpreted
from weft.torch import card

LONG = 1e11  # operations of a product from which launches are nothing
BEHIND = 0.06  # of a long product's time, by which a kernel is behind cuBLAS at best
MARGIN = 0.98  # of the time of the unfused graph, that a kernel takes at most
OFF = 0.02  # by which results may differ, relative to the largest number: sums of 16-bit factors in another order
GRAPH = 1e-3  # seconds of calls in one graph
ENOUGH = 0.02  # seconds of replays
FEWEST, MOST = 4, 40  # replays


@dataclass(frozen=True)
class Choice:
    """config: of the kernel; None: the graph stays unfused. reason: in words. unfused, fused: seconds, 0 where they
    were not measured. dropped: candidates that failed or were off, and why.
    """

    config: Tiling | None
    reason: str
    unfused: float = 0.0
    fused: float = 0.0
    dropped: tuple[str, ...] = ()


_chosen: dict[str, Choice] = {}


def choose(found: Found, settings: Settings) -> Choice:
    """The configuration for the sizes with which a graph was traced; measured once for each, and kept in the store."""
    why = _reason_against(found)
    if why:
        return Choice(None, why)
    why = _cannot_pay(found)
    if why and settings.templates != "always":
        return Choice(None, why)
    some: list[Tiling] = list(_configs(found))
    if not some:
        return Choice(None, "the card has no room for a tile")
    if settings.templates == "always":
        return Choice(some[0], "it was asked for")
    if torch.cuda.is_current_stream_capturing():
        return Choice(None, "a CUDA graph is captured, and nothing can be measured")
    if kernels.by_library(found.spec):
        some.append(Library())
    sizes = [(*map(hint, value(node).shape), str(value(node).dtype)) for node in found.inputs]
    subject = evidence.subject_of(repr(found.spec), found.unfused.code, sizes, settings.inner)
    key = evidence.key_of(subject)
    if key not in _chosen:
        row = None if settings.templates == "again" else evidence.known(subject)
        if row is not None and row["config"] in (None, *some):
            _chosen[key] = Choice(**row)
        else:
            _chosen[key] = _measured(found, settings, some)
            evidence.keep(subject, f"{spec_words(found.spec)} {sizes[0]}", vars(_chosen[key]))
    return _chosen[key]


def _measured(found: Found, settings: Settings, some: Sequence[Tiling]) -> Choice:
    with torch.no_grad():
        made = _Measurement(found, settings.inner).choice(some)
    torch.cuda.empty_cache()
    return made


def _reason_against(found: Found) -> str:
    tensors = [value(node) for node in found.inputs]
    x = tensors[0]
    if x.device.type != "cuda" and not interpreted():
        return f"its tensors are on {x.device.type}"
    if x.device.type == "cuda" and torch.cuda.get_device_capability(x.device) < (9, 0):
        return "the card has no tensor descriptors"
    kinds = {one.dtype for one in multiplied(found.spec, tensors)}
    if len(kinds) > 1 or not (kinds <= set(kernels.DTYPES) or interpreted()):
        return f"it multiplies {', '.join(sorted(map(str, kinds)))}"
    for one in multiplied(found.spec, tensors):
        if not one.is_contiguous():
            return "a tensor of it is not contiguous"
        if hint(one.shape[-1]) * one.element_size() % ALIGNED:
            return f"a tensor has rows of no multiple of {ALIGNED} bytes"
    if any(torch.is_grad_enabled() and one.requires_grad for one in tensors):
        return "gradients are asked for, and its kernel has none"
    return ""


def _cannot_pay(found: Found) -> str:
    """The first stage, which measures nothing: why a long product's epilogue saves less than it costs, or ""."""
    x, weight = (value(node) for node in found.inputs[:2])
    k = hint(x.shape[-1])
    if isinstance(found.spec, ProjectionsSpec) or x.device.type != "cuda":
        return ""
    flops = 2 * math.prod(map(hint, x.shape)) * hint(weight.shape[1 if found.spec.by_rows else 0])
    at_hand = card.at_hand()
    assert at_hand is not None
    behind = breaks_even(k, at_hand.gpu)
    if flops < LONG or behind >= BEHIND:
        return ""
    return f"a product over {k} channels pays within {behind:.1%} of cuBLAS, and {BEHIND:.0%} is expected"


def _configs(found: Found) -> Any:
    spec, (x, weight) = found.spec, (value(node) for node in found.inputs[:2])
    processors = kernels.card_of(x.device)
    m = 1
    for size in x.shape[:-1]:
        m *= hint(size)
    n = hint(weight.shape[1 if spec.by_rows else 0])
    if isinstance(spec, ProductSpec):
        return configs(m, n, 1 + spec.gated, processors)
    if spec.tables and spec.d & (spec.d - 1):
        return iter(())  # a tile holds whole heads, and is a power of two wide
    return (one for one in configs(m, n, 1, processors, spec.d if spec.tables else 1) if not one.persistent)


class _Measurement:
    """One segment on random numbers."""

    def __init__(self, found: Found, inner: str) -> None:
        self.found, self.inner = found, inner
        random = torch.Generator(value(found.inputs[0]).device).manual_seed(0)
        self.tensors = [_random(value(node), random) for node in found.inputs]

    def choice(self, some: Sequence[Tiling]) -> Choice:
        expected = flat(self.found.spec, self.found.unfused(*self.tensors))
        unfused = seconds_of(self._compiled())
        best: tuple[float, Tiling] | None = None
        dropped = []
        room = [torch.empty_like(x) for x in expected]
        launches = [prepared(self.found.spec, config, self.tensors, room) for config in some]
        for config, launch, why in zip(some, launches, kernels.compile_all(launches), strict=True):
            taken, against = (0.0, why) if why else _tried(launch, expected)
            if against:
                dropped.append(f"{config}: {against}")
            elif best is None or taken < best[0]:
                best = taken, config
        if best is None:
            return Choice(None, "no kernel of it is right and runs", unfused, dropped=tuple(dropped))
        taken, config = best
        if taken > MARGIN * unfused:
            return Choice(None, f"{config} takes {_times(taken, unfused)}", unfused, taken, tuple(dropped))
        return Choice(config, f"{config} takes {_times(taken, unfused)}", unfused, taken, tuple(dropped))

    def _compiled(self) -> Callable[[], Any]:
        """The unfused graph, as the compiler behind weft has it."""
        if self.inner != "inductor":
            return lambda: self.found.unfused(*self.tensors)
        return compiled_alone(self.found.unfused, self.tensors)


def compiled_alone(module: GraphModule, tensors: list[Any]) -> Callable[[], Any]:
    """A call of a graph that Inductor compiled, while it compiles the graph around it."""
    from torch._inductor.compile_fx import compile_fx

    with torch._guards.tracing(None):  # a graph of its own
        made: Any = compile_fx(module, tensors)
        made(*tensors)
    return lambda: made(*tensors)


def layer_seconds(module: GraphModule, values: list[Any]) -> float:
    """Of a whole layer, compiled, in a CUDA graph."""
    with torch.no_grad():
        return seconds_of(compiled_alone(module, values))


def settle_once(
    code: str, configs: Sequence[str], values: Sequence[Any], settle: Callable[[], Settled], again: bool = False
) -> Settled:
    """What `settle` finds for a layer, measured once and kept in the store. code: of the unfused layer."""
    sizes = [(*x.shape, str(x.dtype)) for x in values]
    subject = evidence.subject_of(f"layer {list(configs)}", code, sizes, "inductor")
    row = None if again else evidence.known_layer(subject)
    if row is not None:
        return row
    made = settle()
    evidence.keep_layer(subject, made)
    return made


def _tried(launch: Runnable, expected: Sequence[Tensor]) -> tuple[float, str]:
    """(seconds, ""), or why a launch is no candidate."""
    try:
        against = _off(launch.run(), expected)
        return (0.0, against) if against else (seconds_of(launch.run), "")
    except Exception as error:  # of Triton or of the card
        return 0.0, next(iter(str(error).strip().splitlines()), type(error).__name__)


def _random(like: Any, random: torch.Generator) -> Tensor:
    sizes = [hint(n) for n in like.shape]
    x = torch.randn(sizes, dtype=like.dtype, device=like.device, generator=random)
    return x.mul_(sizes[-1] ** -0.5) if len(sizes) == 2 else x


def _off(found: Sequence[Tensor], expected: Sequence[Tensor]) -> str:
    """By how much results are off; "" where that is rounding."""
    for x, y in zip(found, expected, strict=True):
        error = float((x.reshape(y.shape).float() - y.float()).abs().max() / y.float().abs().max().clamp(min=1e-6))
        if not error <= OFF:  # NaN too
            return f"it is off by {error:.2g} of the largest number"
    return ""


def _times(fused: float, unfused: float) -> str:
    return f"{1e6 * fused:.1f} us, and the graph {1e6 * unfused:.1f}"


def seconds_of(call: Callable[[], Any]) -> float:
    """Seconds of a call in a CUDA graph of several: the least of some replays, since others on the card only add."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
        stream.synchronize()
        begin = time.perf_counter()
        call()
        stream.synchronize()
        each = max(1, min(20, int(GRAPH / max(1e-6, time.perf_counter() - begin))))
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(each):
            call()
    found: list[float] = []
    while len(found) < FEWEST or (sum(found) * each < ENOUGH and len(found) < MOST):
        begins, ends = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begins.record()
        graph.replay()
        ends.record()
        ends.synchronize()
        found.append(begins.elapsed_time(ends) / 1e3 / each)
    return min(found)


def spec_words(spec: ProductSpec | ProjectionsSpec) -> str:
    """What a segment is, in a few words."""
    if isinstance(spec, ProjectionsSpec):
        return "query, key and value" + (", rotated by position" if spec.tables else "")
    parts = ["product", *(["bias"] if spec.biased else []), *([spec.activation] if spec.activation else [])]
    parts += [*(["gate"] if spec.gated else []), *(["residual"] if spec.residual else [])]
    return ", ".join(parts)
