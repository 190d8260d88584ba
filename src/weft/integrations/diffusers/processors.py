"""Attention processors of diffusers that run as they are, but for the attention itself where a rule holds.

A processor projects, normalises and rotates, and then calls one function for attention, which it finds by a global
name. It is run as a copy of its function, in whose globals that name means weft's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from types import FunctionType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

import weft
from weft.errors import LengthError, UnsupportedError
from weft.integrations.diffusers.models import Grid, Model, model_of
from weft.integrations.diffusers.rules import Rule, pattern_of, same
from weft.integrations.sdpa import pattern_of as pattern_of_mask
from weft.torch.remembered import Remembered

STATE = "_weft_patterns"  # of a transformer
SDPA, DISPATCH = "scaled_dot_product_attention", "dispatch_attention_fn"  # what processors call
NOT_TOLD: dict[str, Any] = {"attn_mask": None, "dropout_p": 0.0, "is_causal": False, "enable_gqa": False}
# Of dispatch_attention_fn; a backend changes no value.
KNOWN = {*NOT_TOLD, "scale", "backend"}

_joined: Remembered[Any] = Remembered()  # patterns and a mask of the model's


@dataclass(eq=False)
class State:
    """A transformer's rules, the grid of its last call, and the step of denoising. A later rule goes before.

    now: the rule of each layer at this step, which calls read: a graph that read the step would serve no other one.
    """

    model: Model
    config: Any
    now: list[Rule | None]
    rules: list[Rule] = field(default_factory=list)
    grid: Grid | None = None
    step: int = 0
    hook: Any = None

    def enter(self, transformer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before the transformer's forward: the grid of its tokens."""
        self.grid = self.model.grid(
            self.config, lambda name, place: kwargs.get(name, args[place] if place < len(args) else None)
        )

    def rule(self, layer: int, step: int) -> Rule | None:
        """The rule of a layer at a step; None where it is dense."""
        for rule in reversed(self.rules):
            if rule.holds(layer, step):
                return None if rule.is_dense else rule
        return None

    def refresh(self) -> None:
        """Find the rules that hold now."""
        self.now = [self.rule(layer, self.step) for layer in range(len(self.now))]

    def attend(self, rule: Rule, tensors: tuple[Tensor, Tensor, Tensor], layout: str, given: dict[str, Any]) -> Tensor:
        """Attention of q, k, v in that layout. given: other arguments of the function that it stands in for."""
        q, k, v = tensors
        odd = [name for name, x in given.items() if x is not None and name not in KNOWN]
        odd += [name for name in ("dropout_p", "is_causal") if given.get(name)]
        if odd:
            raise UnsupportedError(
                f"attention under a pattern with {odd[0]}=...", f"{odd[0]} is not served beside a pattern",
                f"leave {odd[0]} out, or clear_pattern(transformer)",
            )  # fmt: skip
        heads, at = (1, 2) if layout == "bhsd" else (2, 1)
        pattern, mask = self._pattern(rule, q.shape[at], k.shape[at]), given.get("attn_mask")
        if mask is not None:
            pattern = self._masked(pattern, mask, (q.shape[0], q.shape[heads], q.shape[at], k.shape[at]))
        return weft.attention(q, k, v, pattern, layout=layout, scale=given.get("scale"))

    def _pattern(self, rule: Rule, queries: int, keys: int) -> Any:
        grid = self.grid
        text = -1 if grid is None else queries - prod(grid)
        if grid is None or queries != keys or text < 0 or (text and self.model.text is None):
            raise LengthError(
                f"attention of {queries} queries and {keys} keys under a pattern of a video",
                f"the grid of its tokens is {grid}, and text stands {self.model.text}",
                "call the whole transformer, whose arguments tell the grid, or clear_pattern(transformer)",
            )  # fmt: skip
        first = self.model.text == "first"
        return rule.pattern(grid, text, first) if is_compiling() else pattern_of(rule, grid, text, first)

    def _masked(self, pattern: Any, mask: Tensor, sizes: tuple[int, int, int, int]) -> Any:
        """The pattern without what the model's own mask leaves out: padded text."""
        if not isinstance(mask, Tensor):
            raise UnsupportedError(
                f"attention under a pattern with a {type(mask).__name__} of the model",
                "its tokens lie in blocks of 8 x 8 then, and a pattern counts them row by row",
                'call pipe.transformer.register_to_config(attention_type="regular"), and pass no sparse_params',
            )  # fmt: skip
        if mask.is_floating_point() or mask.dim() != 4:
            raise UnsupportedError(
                f"attention under a pattern with a mask {tuple(mask.shape)} of {mask.dtype}",
                "a pattern is joined to booleans alone", "pass the model a boolean mask of its text",
            )  # fmt: skip
        if is_compiling() and self.model.padded_at_end:
            return pattern & weft.padding(mask[:, 0, 0].sum(-1).cpu())
        return _joined.of(mask, pattern, lambda: same(pattern & pattern_of_mask(mask, sizes)))


# ---- processors ------------------------------------------------------------------------------------------------------
def _instead(original: Callable[..., Tensor], state: State, layer: int, layout: str) -> Callable[..., Tensor]:
    """The function that a processor calls, where its layer has a rule weft's."""

    def attention(query: Tensor, key: Tensor, value: Tensor, *rest: Any, **given: Any) -> Tensor:
        rule = state.now[layer]
        if rule is None:
            return original(query, key, value, *rest, **given)
        given.update(zip(NOT_TOLD, rest, strict=False))
        return state.attend(rule, (query, key, value), layout, given)

    return attention


def sparse(original: Any, state: State, layer: int) -> Any:
    """A processor as the original one, whose attention follows the rules of its layer."""
    kind = type(original)
    run: Any = kind.__call__
    code: Any = getattr(run, "__code__", None)
    called, names = getattr(code, "co_names", ()), dict(getattr(run, "__globals__", {}))
    if DISPATCH in called and DISPATCH in names:
        names[DISPATCH] = _instead(names[DISPATCH], state, layer, "bshd")
    elif SDPA in called and names.get("F") is torch.nn.functional:
        functions = {name: x for name, x in vars(torch.nn.functional).items() if not name.startswith("__")}
        names["F"] = SimpleNamespace(**functions | {SDPA: _instead(functions[SDPA], state, layer, "bhsd")})
    else:
        raise UnsupportedError(
            f"set_pattern of a layer with {kind.__name__}", f"it calls neither {DISPATCH} nor F.{SDPA}",
            "use the processor that the model was made with",
        )  # fmt: skip
    names.pop("__name__", None)  # by which torch.compile would find the original's globals
    copy: Any = FunctionType(code, names, run.__name__, run.__defaults__, run.__closure__)
    copy.__kwdefaults__ = run.__kwdefaults__
    if state.model.reads_host:
        copy = torch.compiler.disable(copy)
    again = functools.partial(sparse, original, state, layer)
    members = {"__call__": copy, "__reduce__": lambda self: (again.func, again.args), "__doc__": kind.__doc__}
    made: Any = object.__new__(type(f"Sparse{kind.__name__}", (kind,), members))
    made.__dict__.update(original.__dict__)
    made.__dict__[STATE] = original
    return made


def install(transformer: Any) -> State:
    """The state of a transformer, whose processors are replaced at the first time."""
    state: State | None = getattr(transformer, STATE, None)
    if state is not None:
        return state
    model = model_of(transformer)
    layers = list(model.attentions(transformer))
    state = State(model, transformer.config, [None] * len(layers))
    made = [(x, sparse(x.processor, state, layer)) for layer, x in enumerate(layers)]
    for attention, processor in made:
        attention.processor = processor
    state.hook = transformer.register_forward_pre_hook(state.enter, with_kwargs=True)
    setattr(transformer, STATE, state)
    return state


def remove(transformer: Any) -> None:
    """Put the processors back that were there before."""
    state: State | None = getattr(transformer, STATE, None)
    if state is None:
        return
    for attention in state.model.attentions(transformer):
        attention.processor = attention.processor.__dict__[STATE]
    state.hook.remove()
    delattr(transformer, STATE)
