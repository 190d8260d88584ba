"""Options of the backend: weft's own, which begin with "weft.", beside those of the compiler behind it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Any

from weft.errors import OptionError

PREFIX = "weft."
# Saved pairs from which weft's own time on the host is repaid, by device. On an H200 bert-base of (8, 512) saves less
# than 25 million pairs a layer and lost, llama-1b of (8, 512) saves 45 million and won.
LEAST = {"cpu": 1 << 20, "cuda": 1 << 25}
TEMPLATES = ("auto", "again", "off", "always")
LEAST_CAPTURED = 1 << 22  # in a CUDA graph, where the host does nothing


@dataclass(frozen=True)
class Settings:
    """What decides whether an attention is replaced.

    share: of all pairs, what weft may compute at most, in tiles. least: pairs over all heads and batch rows that have
    to be saved at least; None: as LEAST has it for the device. inner: the backend of torch.compile for the rest.
    templates: products with what follows them in weft's kernels. "auto": where they were measured to be faster;
    "again": the same, and what the store has is measured again; "off"; "always": without a measurement.
    """

    share: float = 0.6
    least: int | None = None
    inner: str = "inductor"
    templates: str = "auto"

    def saved_at_least(self, device: str) -> int:
        """Pairs to be saved on a device."""
        return LEAST.get(device, LEAST["cuda"]) if self.least is None else self.least

    def for_captures(self) -> Settings:
        """The same where CUDA graphs hold what runs."""
        return self if self.least is not None else replace(self, least=LEAST_CAPTURED)

    @classmethod
    def of(cls, options: dict[str, Any] | None) -> tuple[Settings, dict[str, Any]]:
        """The settings among options of torch.compile, and the other options. Raises OptionError for unknown names."""
        own = {name.removeprefix(PREFIX): x for name, x in (options or {}).items() if name.startswith(PREFIX)}
        rest = {name: x for name, x in (options or {}).items() if not name.startswith(PREFIX)}
        known = [one.name for one in fields(cls)]
        for name, x in own.items():
            if name not in known:
                near = get_close_matches(name, known, n=1)
                cure = (
                    f'write "{PREFIX}{near[0]}"' if near else f"the options are {', '.join(PREFIX + n for n in known)}"
                )
                raise OptionError(f'options={{"{PREFIX}{name}": ...}}', "weft's backend has no such option", cure)
            _check(name, x)
        return cls(**own), rest


def _check(name: str, x: Any) -> None:
    asked = f'options={{"{PREFIX}{name}": {x!r}}}'
    if name == "inner" and not isinstance(x, str):
        raise OptionError(asked, "it is no name of a backend", 'pass a name, e.g. "inductor" or "aot_eager"')
    if name == "templates" and x not in TEMPLATES:
        raise OptionError(asked, "it is no way to choose templates", f"pass one of {', '.join(TEMPLATES)}")
    if name == "share" and not (isinstance(x, int | float) and 0 <= x <= 1):
        raise OptionError(asked, "it is no share of pairs", "pass a number from 0 to 1")
    if name == "least" and not (isinstance(x, int) and x >= 0):
        raise OptionError(asked, "it is no number of pairs", "pass an integer, 0 for all attention")
