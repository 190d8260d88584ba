"""A compiled graph of inference as CUDA graphs, for sizes whose launches take the host longer than the device.

A capture holds kernels, addresses, and the patterns of recognised attention. So inputs that are no parameters are
copied to the places where the capture reads them, and results are copied out. The content of masks is part of what a
capture is found by. So another mask has a capture of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from weft.errors import WeftError
from weft.fusion.decide import digest
from weft.fusion.extract import is_input
from weft.fusion.nodes import owner, value, writes_to
from weft.torch.fingerprint import UnseenError, fingerprint
from weft.torch.mask_cache import MaskCache
from weft.torch.masks import is_capturing

Compiled = Callable[..., Any]
DEVICE = "cuda"
KEPT = 8  # captures of a graph; sizes and masks beyond them run as they are
Key = tuple[Any, ...]


def reason_against(module: GraphModule, masks: Sequence[Node]) -> str:
    """Why a graph is not captured; "" where it is. masks: what masks of recognised attention are computed from."""
    if any(node.op == "get_attr" for node in masks):
        return "it holds a mask itself, and a capture would not see it change"
    if torch.is_grad_enabled():
        return "gradients are enabled, and captures are for inference"
    tensors = [value(node) for node in module.graph.nodes if isinstance(value(node), Tensor)]
    away = {x.device.type for x in tensors} - {DEVICE}
    if away:
        return f"it has tensors on {', '.join(sorted(away))}"
    for node in module.graph.nodes:
        for target in writes_to(node):
            if is_input(owner(target)):
                return f"it writes into {owner(target).name}, which is there before it runs"
        if node.op == "output" and any(is_input(owner(one)) for one in node.all_input_nodes):
            return "it returns a part of its inputs"
    return ""


@dataclass
class _Capture:
    """places: inputs by number, and what they are copied to. held: places of masks, which a capture was found by."""

    graph: Any
    places: list[tuple[int, Tensor]]
    held: list[Tensor]
    results: Any


class Captured:
    """A compiled graph that captures itself at the second call of a key, and replays from then on.

    made: the compiled graph. masks: which of its inputs decide what attention computes.
    """

    def __init__(self, made: Compiled, masks: Sequence[int]) -> None:
        self.made, self.masks = made, masks
        self.captures: dict[Key, _Capture | None] = {}  # None: it ran once
        self.refused = ""  # why a capture failed; then all runs as it is
        self.digests: MaskCache[Key] = MaskCache()
        self.staying: list[int] | None = None  # inputs that lie at one place for all calls
        self.given: list[int] = []  # the others

    def __call__(self, *args: Any) -> Any:
        at = None if self.refused or torch.is_grad_enabled() or is_capturing() else self._capture_for(args)
        if at is None:
            return self.made(*args)
        for i, place in at.places:
            place.copy_(args[i])
        at.graph.replay()
        return _copied(at.results)

    def _capture_for(self, args: Sequence[Any]) -> _Capture | None:
        """The capture of these inputs, made now if they come a second time; None where they run as they are."""
        key = self._key(args)
        if key is None:
            return None
        if key not in self.captures:
            if len(self.captures) < KEPT:
                self.captures[key] = None
            return None
        at = self.captures[key]
        if at is None:
            try:
                at = self.captures[key] = self._captured(args)
            except (RuntimeError, WeftError) as error:
                self.refused = str(error).splitlines()[0]
        return at

    def _key(self, args: Sequence[Any]) -> Key | None:
        """What a capture is found by; None where it cannot be known."""
        if self.staying is None:
            self.staying = [i for i, x in enumerate(args) if isinstance(x, Tensor) and _stays(x)]
            self.given = [i for i in range(len(args)) if i not in set(self.staying)]
        key: list[Any] = [torch.cuda.current_stream().cuda_stream]
        key += [args[i].data_ptr() for i in self.staying]  # of one shape for as long as the graph serves them
        for x in (args[i] for i in self.given):
            key.append((x.shape, x.stride(), x.dtype) if isinstance(x, Tensor) else x)
        for place in self.masks:
            try:
                key.append(self._content(args[place]))
            except UnseenError:
                return None
        return tuple(key)

    def _content(self, x: Tensor) -> Key:
        """The digest of a tensor, read once for each of its versions."""
        found = fingerprint(x)
        at = self.digests.find(found, ())
        if at is None:
            at = digest(x)
            with self.digests.lock:
                self.digests.keep(found, (), at)
        return at

    def _captured(self, args: Sequence[Any]) -> _Capture:
        places = [(i, args[i].clone()) for i in self.given if isinstance(args[i], Tensor)]
        given = list(args)
        for i, place in places:
            given[i] = place
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.made(*given)  # what is met here for the first time, as masks at their places, is refused in a capture
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = self.made(*given)
        read = [(i, place) for i, place in places if i not in self.masks]
        return _Capture(graph, read, [place for i, place in places if i in self.masks], results)


def _stays(x: Tensor) -> bool:
    """Whether a tensor lies at one place for all calls, as parameters and buffers of modules do."""
    return isinstance(x, torch.nn.Parameter) or getattr(x, "_dynamo_static_input_type", None) is not None


def _copied(results: Any) -> Any:
    if isinstance(results, Tensor):
        return results.clone()
    if isinstance(results, tuple | list):
        return type(results)(_copied(x) for x in results)
    return results


def places_of(module: GraphModule, nodes: Sequence[Node]) -> list[int]:
    """Which inputs of a graph these nodes are; those that it holds itself are no inputs."""
    inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
    return sorted({inputs.index(node) for node in nodes if node in inputs})
