"""Whether a segment's kernel is faster than what the compiler behind weft makes of the same graph: both are measured.

Each candidate runs in a CUDA graph, so launches cost what they cost there. The compiler's own kernels with cuBLAS are
always a candidate, and what is not faster by MARGIN is left to it. A candidate that fails, or whose results are off, is
dropped and said.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from weft.fusion import evidence, kernels
from weft.fusion.epilogues import Found
from weft.fusion.kernels import ProductSpec, ProjectionsSpec, Runnable
from weft.fusion.model import breaks_even
from weft.fusion.nodes import hint, value
from weft.fusion.segment import Tiling, flat, multiplied, prepared, weights_of
from weft.fusion.settings import Settings
from weft.fusion.timing import compiled_alone, in_turn, parameters_of, seconds_of
from weft.fusion.whole import Settled
from weft.kernels.gpu.gemm.config import ALIGNED, configs
from weft.settings import interpreted
from weft.torch import card

LONG = 1e11  # operations of a product from which launches are nothing
BEHIND = 0.06  # of a long product's time, by which a kernel is behind cuBLAS at best
MARGIN = 0.98  # of the time of the unfused graph, that a kernel takes at most
IN_LAYER = 1.05  # the same of a residual's, which also saves the norm after it a pass: its layer is measured
OFF = 0.02  # by which results may differ, relative to the largest number: sums of 16-bit factors in another order


@dataclass(frozen=True)
class Choice:
    """config: of the kernel; None: the graph stays unfused. reason: in words. unfused, fused: seconds, 0 where they
    were not measured. dropped: candidates that failed or were off, and why. A configuration that is not `won_alone` is
    for a layer to judge.
    """

    config: Tiling | None
    reason: str
    unfused: float = 0.0
    fused: float = 0.0
    dropped: tuple[str, ...] = ()

    @property
    def won_alone(self) -> bool:
        """Whether the kernel is faster by the margin, where that was measured."""
        return self.config is not None and self.fused <= MARGIN * self.unfused

    def alone(self) -> Choice:
        """What holds where no layer is measured."""
        return self if self.won_alone else replace(self, config=None)


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
    some += kernels.libraries(found.spec)
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
    return _has_no_gradient(found.spec, tensors) if torch.is_grad_enabled() else ""


def _has_no_gradient(spec: ProductSpec | ProjectionsSpec, tensors: Sequence[Any]) -> str:
    """Why a kernel has no gradient that is asked for, or ""."""
    if isinstance(spec, ProductSpec):
        return ""
    if spec.normed:
        return "gradients are asked for, and its norm of heads has none"
    tables = tensors[-2:] if spec.tables else []
    return "its tables have gradients" if any(one.requires_grad for one in tables) else ""


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
        return configs(m, n, 1 + spec.gated, processors, beside=spec.beside)
    if spec.by_head and spec.d & (spec.d - 1):
        return iter(())  # a tile holds whole heads, and is a power of two wide
    widths = [hint(value(node).shape[1 if spec.by_rows else 0]) for node in found.inputs[1:4]]
    if spec.by_rows and len(set(widths)) > 1:
        return iter(())  # rows of weights, which one descriptor walks, are of one length
    some = configs(m, sum(widths), 1, processors, spec.d if spec.by_head else 1, spec.by_head)
    return (one for one in some if not any(width % one.cols for width in widths))


class _Measurement:
    """One segment on random numbers."""

    def __init__(self, found: Found, inner: str) -> None:
        self.found, self.inner = found, inner
        random = torch.Generator(value(found.inputs[0]).device).manual_seed(0)
        self.tensors = [_random(value(node), random) for node in found.inputs]
        weights = range(1, 1 + len(weights_of(found.spec, self.tensors)))
        self.copies = in_turn(self.tensors, weights)

    def choice(self, some: Sequence[Tiling]) -> Choice:
        spec = self.found.spec
        expected = flat(spec, self.found.unfused(*self.tensors))
        made = self._compiled()
        unfused = seconds_of([partial(made, *tensors) for tensors in self.copies])
        best: tuple[float, Tiling] | None = None
        dropped = []
        room = kernels.room(spec, self.tensors)
        launches = [prepared(spec, config, self.tensors, room) for config in some]
        for config, launch, why in zip(some, launches, kernels.compile_all(launches), strict=True):
            others = [] if why else [prepared(spec, config, tensors, room) for tensors in self.copies[1:]]
            taken, against = (0.0, why) if why else _tried([launch, *others], expected)
            if against:
                dropped.append(f"{config}: {against}")
            elif best is None or taken < best[0]:
                best = taken, config
        if best is None:
            return Choice(None, "no kernel of it is right and runs", unfused, dropped=tuple(dropped))
        taken, config = best
        if taken > (IN_LAYER if getattr(spec, "residual", False) else MARGIN) * unfused:
            return Choice(None, f"{config} takes {_times(taken, unfused)}", unfused, taken, tuple(dropped))
        return Choice(config, f"{config} takes {_times(taken, unfused)}", unfused, taken, tuple(dropped))

    def _compiled(self) -> Callable[[], Any]:
        """The unfused graph, as the compiler behind weft has it."""
        if self.inner != "inductor":
            return self.found.unfused
        return compiled_alone(self.found.unfused, self.tensors)


def layer_seconds(module: GraphModule, values: list[Any]) -> float:
    """Of a whole layer, compiled, in a CUDA graph that calls it on copies of its weights, as a model has layers.

    A mask is not copied: what attention decided for it holds for that tensor.
    """
    with torch.no_grad():
        made = compiled_alone(module, values)
        return seconds_of([partial(made, *some) for some in in_turn(values, parameters_of(values))])


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


def _tried(launches: Sequence[Runnable], expected: Sequence[Tensor]) -> tuple[float, str]:
    """(seconds, ""), or why a launch is no candidate. expected: of the first one."""
    try:
        against = _off(launches[0].run(), expected)
        return (0.0, against) if against else (seconds_of([one.run for one in launches]), "")
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


def spec_words(spec: ProductSpec | ProjectionsSpec) -> str:
    """What a segment is, in a few words."""
    if isinstance(spec, ProjectionsSpec):
        done = ", normed by head" * spec.normed + ", rotated by position" * spec.tables
        return f"query, key and value{done}"
    parts = ["product", *(["bias"] if spec.biased else []), *([spec.activation] if spec.activation else [])]
    parts += [*(["gate"] if spec.gated else []), *(["residual"] if spec.residual else [])]
    parts += ["what gradients need"] if spec.keeps else []
    return ", ".join(parts)
