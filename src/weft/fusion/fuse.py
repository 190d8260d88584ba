"""`weft.fuse`: a model, or a function, whose attention weft computes where that pays, with the explanation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from weft.errors import InputError
from weft.fusion.backend import Compiled, compiled
from weft.fusion.report import Explanation
from weft.fusion.settings import Settings


class _Backend:
    """The backend of one fused model."""

    def __init__(self, mode: str | None, options: dict[str, Any]) -> None:
        self.mode, self.options = mode, options
        self.explanation = Explanation()

    def __call__(self, module: GraphModule, inputs: Sequence[Any]) -> Compiled:
        return compiled(module, inputs, self.explanation.graphs.append, self.mode, self.options)


class _Fused:
    """What a fused function and a fused module share. Graphs are traced when they are first called, or when the
    explanation is first asked for and there are example inputs.
    """

    def _begin(self, target: Callable[..., Any], examples: tuple[Any, ...], backend: _Backend, dynamic: Any) -> None:
        compile = torch.compile(target, backend=backend, dynamic=dynamic)
        for name, x in (("_call", compile), ("_backend", backend), ("_examples", examples), ("_target", target)):
            object.__setattr__(self, name, x)

    @property
    def explanation(self) -> Explanation:
        """What was found, replaced and left. Runs the model once on the example inputs if it never ran."""
        backend: _Backend = self.__dict__["_backend"]
        examples = self.__dict__["_examples"]
        if not backend.explanation.graphs and examples:
            with torch.no_grad(), torch.random.fork_rng():
                self.__dict__["_call"](*examples)
        return backend.explanation


class FusedFunction(_Fused):
    """A function that `fuse` returned."""

    def __init__(self, function: Callable[..., Any], examples: tuple[Any, ...], backend: _Backend, dynamic: Any):
        self._begin(function, examples, backend, dynamic)
        self.__name__ = getattr(function, "__name__", "fused")
        self.__doc__ = function.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__dict__["_call"](*args, **kwargs)


class FusedModule(_Fused, torch.nn.Module):
    """A module that `fuse` returned: it shares all parameters with the one that it was made of, and its attributes."""

    def __init__(self, module: torch.nn.Module, examples: tuple[Any, ...], backend: _Backend, dynamic: Any):
        torch.nn.Module.__init__(self)
        self._orig_mod = module  # as torch.compile calls it, so that state dictionaries have the same names
        self._begin(module, examples, backend, dynamic)
        self.training = module.training

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.__dict__["_call"](*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("_orig_mod"), name)


def fuse(
    model: Any, *example_inputs: Any, mode: str | None = None, options: dict[str, Any] | None = None,
    dynamic: bool | None = None,
) -> Any:  # fmt: skip
    """The same model, or function, with attention that weft computes where its mask leaves out enough.

    - model: a torch.nn.Module or a function of tensors. Neither is changed; parameters are shared.
    - example_inputs: what `.explanation` runs the model on, once and without gradients, if it never ran before.
    - mode, dynamic: as of torch.compile; "reduce-overhead" makes CUDA graphs of inference (weft's own).
    - options: those of Inductor, and weft's. "weft.share": the largest share of pairs that weft may compute; without
      it, attention is measured in inference on a GPU, and elsewhere it is 0.6. "weft.least": pairs that must be saved
      at least. "weft.inner": the backend for everything else ("inductor"). "weft.templates": whether weft's products
      with what follows them are used, "auto", where they were measured to be faster, "again", "off" or "always".
      "weft.activations": what training does for gradients of activations, "kept" or "recomputed".

    Returns what is called as `model` is; its `.explanation` lists each attention, replaced or left with the reason.
    Raises InputError for what is neither module nor function, OptionError for unknown options. Example::

        fast = weft.fuse(model, ids, mask)
        print(fast.explanation)
    """
    Settings.of(options)
    backend = _Backend(mode, dict(options or {}))
    if isinstance(model, torch.nn.Module):
        return FusedModule(model, example_inputs, backend, dynamic)
    if not callable(model) or isinstance(model, type):
        raise InputError(
            f"fuse({type(model).__name__})", "it is neither a torch.nn.Module nor a function",
            "pass the model itself: weft.fuse(model, *example_inputs)",
        )  # fmt: skip
    return FusedFunction(model, example_inputs, backend, dynamic)
