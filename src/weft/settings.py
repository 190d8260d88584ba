"""The few things that the environment decides: nothing else on the way to a result reads it."""

from __future__ import annotations

import os
from pathlib import Path

from weft.errors import OptionError
from weft.outside import shown

CACHE_MIB = 1024  # some five thousand kernels
PLANS_MIB = 256  # 7 masks of 16,384 tokens, 125 of 4,096, a head each: some 2 GB with all that is made of them

DIGITS = 12  # of a number of MiB: more is no disk


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
        return _directory("WEFT_CACHE_DIR", named)
    from platformdirs import user_cache_path  # where each system wants caches

    found, home = user_cache_path("weft", appauthor=False), _home()
    missing = found.is_relative_to(home) and not home.is_dir()
    return Path("~", found.relative_to(home)) if missing else found


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:  # nobody knows one
        return Path("~")


def cache_base() -> Path | None:
    """A store below the user's own, which is only read: WEFT_CACHE_BASE; None: there is none."""
    named = os.environ.get("WEFT_CACHE_BASE", "").strip()
    return _directory("WEFT_CACHE_BASE", named) if named else None


def cache_shared() -> bool:
    """Whether the members of the store's group may write it, and so choose the code that runs: WEFT_CACHE_SHARED."""
    named = os.environ.get("WEFT_CACHE_SHARED", "").strip()
    if named not in ("", "group"):
        raise OptionError(
            f"WEFT_CACHE_SHARED={shown(named, 40)}", "a store is shared with the group of its directory, or not at all",
            "set WEFT_CACHE_SHARED=group, or leave it unset",
        )  # fmt: skip
    return named == "group"


def _directory(name: str, named: str) -> Path:
    try:
        return Path(named).expanduser().absolute()
    except (RuntimeError, ValueError) as error:  # ~somebody
        raise OptionError(f"{name}={shown(named)}", str(error), "name the directory in full") from None


def cache_bytes() -> int:
    """The most that is kept there: WEFT_CACHE_MIB, in MiB, else CACHE_MIB."""
    return _mebibytes("WEFT_CACHE_MIB", CACHE_MIB, ", or WEFT_CACHE_DIR=off to keep nothing")


def plans_bytes() -> int:
    """The most that masks without structure may hold in this process, as blocks: WEFT_PLANS_MIB, else PLANS_MIB."""
    return _mebibytes("WEFT_PLANS_MIB", PLANS_MIB)


def _mebibytes(name: str, usual: int, otherwise: str = "") -> int:
    named = os.environ.get(name, "").strip() or str(usual)
    if not (named.isascii() and named.isdecimal() and len(named) <= DIGITS) or int(named) == 0:
        raise OptionError(
            f"{name}={shown(named, 40)}", f"it is no whole number of MiB above 0, of {DIGITS} digits at most",
            f"set a whole number, {usual} for one{otherwise}",
        )  # fmt: skip
    return int(named) << 20
