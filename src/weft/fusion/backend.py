"""`torch.compile(model, backend="weft")`: recognised attention goes to weft, the rest to another backend."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from weft.fusion import captured
from weft.fusion.report import Explanation, GraphReport
from weft.fusion.rewrite import rewrite
from weft.fusion.settings import Settings

KEPT = 64  # reports of graphs, for `explanation`
_reports: deque[GraphReport] = deque(maxlen=KEPT)
# Modes that ask for CUDA graphs, and what they ask for beside. The captures of torch cannot hold weft's operators,
# whose patterns are found from masks on the host.
CAPTURED = {"reduce-overhead": None, "max-autotune": "max-autotune-no-cudagraphs"}
Compiled = Callable[..., Any]


def weft(
    module: GraphModule, inputs: Sequence[Any], *, mode: str | None = None, options: dict[str, Any] | None = None
) -> Compiled:
    """The backend, as torch.compile calls it. options: weft's own, e.g. "weft.share", and those of the inner one."""
    return compiled(module, inputs, _reports.append, mode, options)


def compiled(
    module: GraphModule, inputs: Sequence[Any], report: Callable[[GraphReport], None], mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Compiled:  # fmt: skip
    """One graph, rewritten and compiled; what was found goes to `report`."""
    settings, rest = Settings.of(options)
    if mode in CAPTURED and not torch.is_grad_enabled():
        settings = settings.for_captures()
    found, masks = rewrite(module, inputs, settings)
    places, against = captured.places_of(module, masks), ""
    if mode in CAPTURED:
        against = captured.reason_against(module, masks)
        found.captured = f"none, because {against}" if against else "from the second call of each size and mask on"
    capturing = mode in CAPTURED and not against
    made = _inner(settings.inner)(module, inputs, CAPTURED[str(mode)] if capturing else mode, rest)
    report(found)  # not before: Dynamo may start again
    return captured.Captured(made, places) if capturing else made


def _inner(name: str) -> Callable[..., Compiled]:
    """Another backend, called with a graph, inputs, mode and options."""
    if name == "inductor":
        return _inductor
    from torch._dynamo.backends.registry import lookup_backend

    def call(module: GraphModule, inputs: Sequence[Any], mode: str | None, options: dict[str, Any]) -> Compiled:
        given: dict[str, Any] = {"mode": mode} if mode not in (None, "default") else {}
        return lookup_backend(name)(module, list(inputs), **given, **({"options": options} if options else {}))

    return call


def _inductor(module: GraphModule, inputs: Sequence[Any], mode: str | None, options: dict[str, Any]) -> Compiled:
    """Inductor, with what its modes and options mean."""
    from torch import _inductor
    from torch._inductor.compile_fx import compile_fx

    patches = dict(_inductor.list_mode_options(mode)) if mode not in (None, "default") else {}
    patches |= {name.replace("-", "_"): x for name, x in options.items()}
    return compile_fx(module, list(inputs), config_patches=patches)


def explanation() -> Explanation:
    """What `torch.compile(..., backend="weft")` found in the last graphs of this process."""
    return Explanation(list(_reports))
