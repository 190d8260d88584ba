"""What a command line names as MODULE:NAME, imported as `python -m` would."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from weft.errors import InputError


def function(command: str, target: str, takes: str) -> Callable[..., Any]:
    """The function that MODULE:NAME names. takes: what it is a function of, for the refusal of anything else."""
    asked = f"{command} {target}"
    module, _, name = target.rpartition(":")
    if not module:
        raise InputError(asked, "it names no module", "write MODULE:FUNCTION")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # as `python -m` does
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:  # whatever the module raises while it is imported
        raise InputError(
            asked, f"{type(error).__name__}: {error}", "name a module that can be imported here, and a function in it"
        ) from None
    if not callable(found):
        raise InputError(asked, f"{name} is a {type(found).__name__}, no function", f"name a function of {takes}")
    made: Callable[..., Any] = found
    return made
