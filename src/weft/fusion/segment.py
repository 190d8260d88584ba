"""The registered operator weft::fused_segment: a part of a layer by one kernel, whose meaning is the unfused graph.

Its gradients are torch's own operations (`weft.fusion.gradients`), so that the compiler behind weft joins them to what
is around them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable
from torch.fx import GraphModule

from weft.fusion import kernels
from weft.fusion.by_name import ByName
from weft.fusion.gradients import gradients
from weft.fusion.kernels import Library, LibraryCall, Prepared, ProductSpec, ProjectionsSpec, Runnable, Started
from weft.kernels.gpu.gemm.config import Config
from weft.torch.masks import is_capturing
from weft.torch.operator import DERIVATIVES, LIB, TAGS, TRANSFORMS, refusal

for _name in ("fused_segment", "fused_segment_trained"):  # the second one has gradients, which costs the host more
    LIB.define(f"{_name}(Tensor[] tensors, str name) -> Tensor[]", tags=TAGS[:2])  # a capture may hold it


Tiling = Config | Library
KEPT = 1024  # launches of a segment


@dataclass(eq=False)
class Fused:
    """One segment, for all places where it stands alike.

    unfused: (*tensors) -> its results as the graph has them. config: how its kernel is tiled, or whose it is. launches:
    by the addresses and sizes of calls, which allocators repeat; None where a call's cannot be kept.
    """

    spec: ProductSpec | ProjectionsSpec
    unfused: GraphModule
    config: Tiling
    launches: dict[tuple[Any, ...], Started | None] = field(default_factory=dict, repr=False)

    @cached_property
    def name(self) -> str:
        """By content."""
        return sha256(repr((self.spec, self.unfused.code, self.config)).encode()).hexdigest()[:16]

    def as_in_graph(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The unfused results, as the operator lays them out."""
        return flat(self.spec, self.unfused(*tensors))


def flat(spec: ProductSpec | ProjectionsSpec, results: Sequence[Tensor]) -> list[Tensor]:
    """Results as the operator has them (..., n), contiguous: query, key and value beside each other."""
    if isinstance(spec, ProjectionsSpec):
        heads = [x.transpose(1, 2).flatten(2) if spec.by_head and x.dim() == 4 else x for x in results]
        return [torch.cat(heads, -1)]
    if spec.keeps:
        return [results[0].contiguous(), torch.stack(tuple(results[1:]))]
    return [x.contiguous() for x in results]


def prepared(
    spec: ProductSpec | ProjectionsSpec, config: Tiling, tensors: Sequence[Tensor], results: kernels.Results = None
) -> Runnable:
    """The launch of a segment's kernel on tensors that the graph gives it. results: room for what it gives."""
    given = list(tensors)
    if isinstance(config, Library):
        assert isinstance(spec, ProductSpec)
        return LibraryCall(spec, given, config.rank)
    if isinstance(spec, ProductSpec):
        return kernels.product(spec, config, given, results)
    if spec.tables:
        given[-2:] = [table[:, 0].contiguous() for table in given[-2:]]
    return kernels.projections(spec, config, given, results)


_fused: ByName[Fused] = ByName()
registered = _fused.registered


def _forward(tensors: list[Tensor], name: str) -> list[Tensor]:
    one = _fused.named(name)
    if not tensors[0].is_cuda or isinstance(one.config, Library):
        return _first(one, tensors, None)
    from weft.torch.bind import watched

    room = kernels.room(one.spec, tensors)
    key = _addresses(one, (*room, *tensors))
    found = one.launches.get(key)
    if found is None or watched():
        return _first(one, tensors, (key, room))
    found.start(*found.told)
    return room


def _addresses(one: Fused, tensors: Sequence[Tensor]) -> tuple[Any, ...]:
    """All that a launch is made of. tensors: results too."""
    key: list[Any] = [torch._C._cuda_getCurrentRawStream(tensors[0].device.index), one.config]
    for x in tensors:
        key += (x.data_ptr(), x.shape, x.stride(), x.dtype)
    return tuple(key)


def _first(one: Fused, tensors: list[Tensor], at: tuple[tuple[Any, ...], list[Tensor]] | None) -> list[Tensor]:
    """The results of a call whose launch is not known. at: by what it is found the next time, and room for results."""
    if not tensors[0].numel() or kernels.reason_against(multiplied(one.spec, tensors), weights_of(one.spec, tensors)):
        return one.as_in_graph(tensors)  # other sizes or strides than the graph was traced with
    made = prepared(one.spec, one.config, tensors, None if at is None else at[1])
    found = list(made.run())
    if at is not None and isinstance(made, Prepared) and at[0] not in one.launches and not is_capturing():
        if len(one.launches) >= KEPT:
            one.launches.clear()
        stream = at[0][0]
        one.launches[at[0]] = made.started(stream) if made.reads_only(tensors) else None
    return found


def multiplied(spec: ProductSpec | ProjectionsSpec, tensors: Sequence[Any]) -> list[Any]:
    """Those that tensor descriptors reach."""
    if isinstance(spec, ProjectionsSpec):
        return list(tensors[:4])
    return [*tensors[: 2 + spec.gated], *(tensors[-1:] if spec.residual else ())]


def weights_of(spec: ProductSpec | ProjectionsSpec, tensors: Sequence[Any]) -> list[Any]:
    """Those that one descriptor reaches."""
    return list(tensors[1:4] if isinstance(spec, ProjectionsSpec) else tensors[1 : 2 + spec.gated])


def _fake(tensors: list[Tensor], name: str) -> list[Tensor]:
    return kernels.room(_fused.named(name).spec, tensors)


# ---- autograd --------------------------------------------------------------------------------------------------------
def _below_autograd(tensors: list[Tensor], name: str) -> list[Tensor]:
    with torch._C._AutoDispatchBelowAutograd():
        found: list[Tensor] = torch.ops.weft.fused_segment_trained.default(tensors, name)
        return found


class _Recorded(torch.autograd.Function):
    """The operator with its gradients."""

    @staticmethod
    def forward(ctx: Any, name: str, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.name = name
        out, *kept = _below_autograd(list(tensors), name)
        ctx.save_for_backward(*tensors, *kept)
        ctx.mark_non_differentiable(*kept)
        return out, *kept

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, dout: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        spec = _fused.named(ctx.name).spec
        count = len(ctx.needs_input_grad) - 1
        tensors, kept = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
        return None, *gradients(spec, tensors, kept[0] if kept else None, dout)


def _autograd(tensors: list[Tensor], name: str) -> list[Tensor]:
    if _are_functorch_transforms_active():
        raise refusal("a torch.func transform", *TRANSFORMS)
    if forward_ad._current_level >= 0:
        raise refusal("forward-mode differentiation", *DERIVATIVES)
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        return list(_Recorded.apply(name, *tensors))
    return _below_autograd(tensors, name)


for _name in ("fused_segment", "fused_segment_trained"):
    LIB.impl(_name, _forward, "CompositeExplicitAutograd")
    torch.library.register_fake(f"weft::{_name}", _fake, lib=LIB)
LIB.impl("fused_segment_trained", _autograd, "Autograd")
FUSED = torch.ops.weft.fused_segment.default
TRAINED = torch.ops.weft.fused_segment_trained.default
