"""Patterns of a transformer: set, loaded, cleared, and told the step of denoising."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from weft.errors import OptionError
from weft.integrations.diffusers.models import model_of
from weft.integrations.diffusers.processors import STATE, State, install, remove
from weft.integrations.diffusers.rules import Rule, rule_of
from weft.outside import file_bytes, parsed

DEFAULTS = {
    "neighborhood": None, "sliding_tile": None, "stride": 1, "dilation": 1, "layers": None, "steps": None,
}  # fmt: skip


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
    given = {
        "neighborhood": neighborhood, "sliding_tile": sliding_tile, "stride": stride, "dilation": dilation,
        "layers": layers, "steps": steps,
    }  # fmt: skip
    _add(transformer, [_rule(transformer, given)])


def _rule(transformer: Any, given: Mapping[str, Any]) -> Rule:
    return rule_of({**DEFAULTS, **given}, len(list(model_of(transformer).attentions(transformer))))


def _add(transformer: Any, rules: list[Rule]) -> None:
    state = install(transformer)
    state.rules += rules
    state.refresh()


def load_patterns(transformer: Any, path: str | Path) -> None:
    """Rules of a TOML or JSON file: a list `pattern`, each entry with the keywords of `set_pattern`.

    What was set before is cleared. Raises OptionError for a file that cannot be read, is damaged or has other keywords;
    the transformer then keeps what it had. Example of a file::

        [[pattern]]
        neighborhood = [9, 15, 25]
        layers = "2:28"
    """
    asked = f"load_patterns({str(path)!r})"
    content = _content(Path(path), asked)
    rules = content.get("pattern") if isinstance(content, dict) else None
    if not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules) or len(content) != 1:
        raise OptionError(asked, "it has no list `pattern` alone", "write [[pattern]] sections")
    for name in [name for rule in rules for name in rule if name not in DEFAULTS]:
        raise OptionError(asked, f"there is no {name}", f"use {', '.join(DEFAULTS)}")
    found = [_rule(transformer, rule) for rule in rules]
    clear_pattern(transformer)
    if found:
        _add(transformer, found)


def _content(path: Path, asked: str) -> Any:
    """What a file says."""
    form = "JSON" if path.suffix == ".json" else "TOML"
    try:
        data = file_bytes(path)
        return parsed(data) if form == "JSON" else tomllib.loads(data.decode())
    except OSError as error:
        wrong, instead = f"it cannot be read: {error.strerror}", "pass the path of a .toml or .json file"
    except (ValueError, RecursionError) as error:  # what JSON, TOML and UTF-8 raise
        wrong, instead = f"it is no {form}: {error}", "write [[pattern]] sections in TOML, or a list `pattern` in JSON"
    raise OptionError(asked, wrong, instead)


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
