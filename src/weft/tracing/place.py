"""Where in the user's code a trace ended."""

from __future__ import annotations

import linecache
import sys
import traceback
from pathlib import Path

from weft.outside import shown

WEFT = Path(__file__).parents[1]
OURS = tuple(WEFT / name for name in ("recognition", "score", "tracing", "torch", "jax", "integrations"))
LIBRARIES = ("numpy", "torch", "jax")


def place_of(error: BaseException) -> str:
    """The line of the user's code where an error came up; "" if it did not come up there."""
    loaded = [sys.modules[name] for name in LIBRARIES if name in sys.modules]
    folders = {*OURS, *(Path(one.__file__).parent for one in loaded if one.__file__)}
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not folders & set(Path(f.filename).parents)]
    if not frames:
        return ""
    last = frames[-1]
    line = linecache.getline(last.filename, last.lineno or 0).strip()
    return f"in {shown(last.name)}, line {last.lineno}{f' (`{shown(line)}`)' if line else ''}, "
