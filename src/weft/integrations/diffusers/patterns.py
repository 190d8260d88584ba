"""Patterns of a transformer: set, loaded, cleared, and told the step of denoising."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from weft.errors import OptionError
from weft.integrations.diffusers.models import model_of
from weft.integrations.diffusers.processors import STATE, State, install, remove
from weft.integrations.diffusers.rules import rule_of

KEYWORDS = ("neighborhood", "sliding_tile", "stride", "dilation", "layers", "steps")


def set_pattern(  # noqa: PLR0913 - the public face; a rule, by name
    transformer: Any, *, neighborhood: Any = None, sliding_tile: Mapping[str, Any] | None = None, stride: Any = 1,
    dilation: Any = 1, layers: Any = None, steps: Any = None,
) -> None:  # fmt: skip
    """Give the video tokens of a transformer's self-attention a pattern; text sees all and is seen by all.

    - neighborhood: (frames, rows, columns) of tokens, or one int, that a token sees around it; windows are pushed
      inwards at borders. stride, dilation: as `weft.neighborhood`.
    - sliding_tile: {"tile": lengths, "window": odd numbers of tiles, "border": "pushed" or "cut"}, instead.
    - layers: numbers from 0, in the order that blocks run, negative ones from the end, or "2:10"; all if None.
    - steps: of denoising, the same way; `count_steps` or `set_step` tells them. All if None.

    Where several calls speak of a layer, the last one holds; one without a pattern makes its layers dense. Grids follow
    the latents of each call. Raises OptionError for arguments, UnsupportedError for other models, UnsupportedKernel,
    at the call, where no kernel fits. Example::

        set_pattern(pipe.transformer, neighborhood=(9, 15, 25), layers=range(2, 28))
    """
    model = model_of(transformer)
    given = {
        "neighborhood": neighborhood, "sliding_tile": sliding_tile, "stride": stride, "dilation": dilation,
        "layers": layers, "steps": steps,
    }  # fmt: skip
    rule = rule_of(given, len(list(model.attentions(transformer))))
    state = install(transformer)
    state.rules.append(rule)
    state.refresh()


def load_patterns(transformer: Any, path: str | Path) -> None:
    """Rules of a TOML or JSON file: a list `pattern`, each entry with the keywords of `set_pattern`.

    What was set before is cleared. Example of a file::

        [[pattern]]
        neighborhood = [9, 15, 25]
        layers = "2:28"
    """
    text = Path(path).read_text(encoding="utf-8")
    content = json.loads(text) if Path(path).suffix == ".json" else tomllib.loads(text)
    rules = content.get("pattern") if isinstance(content, dict) else None
    if not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules) or len(content) != 1:
        raise OptionError(
            f"load_patterns({str(path)!r})", "it has no list `pattern` alone", "write [[pattern]] sections"
        )
    for name in [name for rule in rules for name in rule if name not in KEYWORDS]:
        raise OptionError(f"load_patterns({str(path)!r})", f"there is no {name}", f"use {', '.join(KEYWORDS)}")
    clear_pattern(transformer)
    for rule in rules:
        set_pattern(transformer, **rule)


def clear_pattern(transformer: Any) -> None:
    """Put the processors back that were there before `set_pattern`."""
    remove(transformer)


def set_step(transformer: Any, step: int) -> None:
    """Tell which step of denoising comes next, from 0, for rules with `steps`."""
    state: State | None = getattr(transformer, STATE, None)
    if state is None:
        raise OptionError("set_step(transformer, ...)", "it has no pattern", "call set_pattern(transformer, ...) first")
    state.step = step
    state.refresh()


def count_steps(transformer: Any) -> Callable[..., dict[str, Any]]:
    """A pipeline's `callback_on_step_end` that counts steps, and begins again after the last. Example::

    pipe(prompt, callback_on_step_end=count_steps(pipe.transformer))
    """

    def after(pipe: Any, step: int, timestep: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        set_step(transformer, 0 if step + 1 >= pipe.num_timesteps else step + 1)
        return kwargs

    return after
