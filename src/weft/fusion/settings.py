"""Options of the backend: weft's own, which begin with "weft.", beside those of the compiler behind it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from weft.errors import OptionError

PREFIX = "weft."
# Saved pairs from which weft's own time on the host is repaid, by device. On an H200 bert-base of (8, 512) saves less
# than 25 million pairs a layer and lost. Of the same sizes llama-1b saves 45 million and won.
LEAST = {"cpu": 1 << 20, "cuda": 1 << 25}
TEMPLATES = ("auto", "again", "off", "always")
LEAST_CAPTURED = 1 << 22  # in a CUDA graph, where the host does nothing
SHARE = 0.6
ACTIVATIONS = ("kept", "recomputed")
OPTIONS = ("share", "least", "inner", "templates", "activations")


@dataclass(frozen=True)
class Settings:
    """What decides whether an attention is replaced.

    share: of all pairs, what weft may compute at most, in tiles; None: what was measured to be faster, and SHARE where
    nothing is measured. least: pairs over all heads and batch rows that have
    to be saved at least; None: as LEAST has it for the device. inner: the backend of torch.compile for the rest.
    templates: products with what follows them in weft's kernels. "auto": where they were measured to be faster;
    "again": the same, and what the store has is measured again; "off"; "always": without a measurement. activations:
    whether a product in training keeps what is before its activation for gradients, or they compute it again. captured:
    CUDA graphs hold what runs. It is no option.
    """

    share: float | None = None
    least: int | None = None
    inner: str = "inductor"
    templates: str = "auto"
    activations: str = "kept"
    captured: bool = False

    @property
    def most(self) -> float:
        """The largest share of pairs where nothing is measured."""
        return SHARE if self.share is None else self.share

    def measures(self, device: str) -> bool:
        """Whether attention is measured on a device before it is replaced."""
        return device == "cuda" and self.share is None and self.inner == "inductor"

    def saved_at_least(self, device: str) -> int:
        """Pairs to be saved on a device."""
        if self.least is None and self.captured:
            return 0 if self.measures(device) else LEAST_CAPTURED
        return LEAST.get(device, LEAST["cuda"]) if self.least is None else self.least

    def for_captures(self) -> Settings:
        """The same where CUDA graphs hold what runs."""
        return replace(self, captured=True)

    @classmethod
    def of(cls, options: dict[str, Any] | None) -> tuple[Settings, dict[str, Any]]:
        """The settings among options of torch.compile, and the other options. Raises OptionError for unknown names."""
        own = {name.removeprefix(PREFIX): x for name, x in (options or {}).items() if name.startswith(PREFIX)}
        rest = {name: x for name, x in (options or {}).items() if not name.startswith(PREFIX)}
        for name, x in own.items():
            if name not in OPTIONS:
                near = get_close_matches(name, OPTIONS, n=1)
                all_of_them = ", ".join(PREFIX + n for n in OPTIONS)
                cure = f'write "{PREFIX}{near[0]}"' if near else f"the options are {all_of_them}"
                raise OptionError(f'options={{"{PREFIX}{name}": ...}}', "weft's backend has no such option", cure)
            _check(name, x)
        return cls(**own), rest


def _check(name: str, x: Any) -> None:
    asked = f'options={{"{PREFIX}{name}": {x!r}}}'
    if name == "inner" and not isinstance(x, str):
        raise OptionError(asked, "it is no name of a backend", 'pass a name, e.g. "inductor" or "aot_eager"')
    if name == "templates" and x not in TEMPLATES:
        raise OptionError(asked, "it is no way to choose templates", f"pass one of {', '.join(TEMPLATES)}")
    if name == "activations" and x not in ACTIVATIONS:
        raise OptionError(asked, "it is no way to have activations", f"pass one of {', '.join(ACTIVATIONS)}")
    if name == "share" and not (isinstance(x, int | float) and 0 <= x <= 1):
        raise OptionError(asked, "it is no share of pairs", "pass a number from 0 to 1")
    if name == "least" and not (isinstance(x, int) and x >= 0):
        raise OptionError(asked, "it is no number of pairs", "pass an integer, 0 for all attention")
