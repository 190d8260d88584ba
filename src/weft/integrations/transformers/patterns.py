"""`set_pattern`: a sparse pattern for layers of a model that has none, kept in its configuration as text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

import torch

from weft.errors import OptionError, UnsupportedError
from weft.integrations.transformers.layered import KEY, read
from weft.integrations.transformers.registration import register
from weft.pattern.parse import parse
from weft.torch.call import check_mask, unwrapped


def set_pattern(model: torch.nn.Module, pattern: Any, layers: Iterable[int] | None = None) -> str:
    """Let layers of a model see only what `pattern` leaves of their own masks; returns what was done, as a line.

    model: of transformers, with a decoder or an encoder; it is set to attn_implementation="weft". pattern: a pattern on
    tokens of the whole sequence, for each head alike or by weft.per_head; None takes it away. layers: their numbers,
    all if None. The pattern is kept as text in `model.config`, so that save_pretrained and from_pretrained keep it. A
    model that is loaded takes it up under attn_implementation="weft", after `register()`.

    Raises InputError for what is no pattern, OptionError for layers that are not there. Raises UnsupportedError for a
    model whose attention does not go through transformers' attention interface. Example::

        set_pattern(model, weft.causal() & weft.window(left=1023), layers=range(0, 32, 2))
    """
    config = model.config.get_text_config()
    if getattr(config, "is_encoder_decoder", False):
        _refuse(model, "it has an encoder and a decoder, whose layers have the same numbers", "pass model.encoder")
    there = _layers(model)
    chosen = sorted(there) if layers is None else [int(layer) for layer in layers]
    for layer in chosen:
        if layer not in there:
            raise OptionError(
                f"set_pattern(layers={chosen})", f"{type(model).__name__} has no layer {layer}",
                f"pass layers from {min(there)} to {max(there)}",
            )  # fmt: skip
    kept = dict(getattr(config, KEY, None) or {})
    text = None if pattern is None else _spelled(pattern)
    for layer in chosen:
        kept.pop(str(layer), None)
        if text is not None:
            kept[str(layer)] = text
    setattr(config, KEY, dict(sorted(kept.items(), key=lambda item: int(item[0]))))
    model.set_attn_implementation(register())
    return f"{len(chosen)} of {len(there)} layers: {'their own masks' if text is None else text}"


def _spelled(pattern: Any) -> str:
    pattern = unwrapped(pattern)
    check_mask(pattern, "set_pattern")
    text = pattern.written(whole=True)
    if parse(text) != pattern:
        raise UnsupportedError(
            f"set_pattern({pattern})", "it cannot be written down", "build it from weft's functions, &, | and ~"
        )
    read(text)
    return text


def _layers(model: torch.nn.Module) -> set[int]:
    """The numbers of the layers whose attention goes through the interface."""
    found = {
        module.layer_idx
        for module in model.modules()
        if "Attention" in type(module).__name__ and isinstance(getattr(module, "layer_idx", None), int)
    }
    if not found or not model._can_set_attn_implementation():
        wrong = "its attention does not go through transformers' attention interface by layers that have numbers"
        _refuse(model, wrong, "take a model that does, as Llama or BERT do")
    return found


def _refuse(model: torch.nn.Module, wrong: str, cure: str) -> NoReturn:
    raise UnsupportedError(f"set_pattern({type(model).__name__}, ...)", wrong, cure)
