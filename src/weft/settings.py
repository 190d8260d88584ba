"""The few things that the environment decides: nothing else on the way to a result reads it."""

from __future__ import annotations

import os
from pathlib import Path

from weft.errors import OptionError

CACHE_MIB = 1024  # some five thousand kernels
PLANS_MIB = 256  # 7 masks of 16,384 tokens, 125 of 4,096, a head each: some 2 GB with all that is made of them


def interpreted() -> bool:
    """Whether Triton interprets kernels on the CPU (TRITON_INTERPRET=1, to be set before triton is imported)."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def colourless() -> bool:
    """Whether the user wants no colour in the terminal (NO_COLOR, not empty: no-color.org)."""
    return bool(os.environ.get("NO_COLOR"))


def cache_dir() -> Path | None:
    """Where artifacts are kept between processes: WEFT_CACHE_DIR, else the user's cache directory; None: "off".

    Not absolute only where there is no home directory.
    """
    named = os.environ.get("WEFT_CACHE_DIR", "").strip()
    if named == "off":
        return None
    if named:
        try:
            return Path(named).expanduser().absolute()
        except RuntimeError as error:  # ~somebody
            raise OptionError(f"WEFT_CACHE_DIR={named}", str(error), "name the directory in full") from None
    from platformdirs import user_cache_path  # where each system wants caches

    return user_cache_path("weft", appauthor=False)


def cache_bytes() -> int:
    """The most that is kept there: WEFT_CACHE_MIB, in MiB, else CACHE_MIB."""
    return _mebibytes("WEFT_CACHE_MIB", CACHE_MIB, ", or WEFT_CACHE_DIR=off to keep nothing")


def plans_bytes() -> int:
    """The most that masks without structure may hold in this process, as blocks: WEFT_PLANS_MIB, else PLANS_MIB."""
    return _mebibytes("WEFT_PLANS_MIB", PLANS_MIB)


def _mebibytes(name: str, usual: int, otherwise: str = "") -> int:
    named = os.environ.get(name, "").strip() or str(usual)
    if not named.isdecimal() or int(named) == 0:
        raise OptionError(
            f"{name}={named}", "it is no whole number of MiB above 0",
            f"set a whole number, {usual} for one{otherwise}",
        )  # fmt: skip
    return int(named) << 20
