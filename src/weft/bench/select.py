"""Which workloads and peers are meant, by names and tags."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from weft.errors import OptionError
from weft.testing.workloads import TAGS, WORKLOADS


def workloads(names: Iterable[str]) -> list[str]:
    """Names of workloads in their own order, each once; a tag stands for all that have it."""
    wanted: dict[str, None] = {}
    for name in names:
        if name in TAGS:
            wanted |= dict.fromkeys(w.name for w in WORKLOADS.values() if name in w.tags)
        elif name.removesuffix(".small") in WORKLOADS:
            wanted[name] = None
        else:
            raise OptionError(
                f"weft bench {name}", f"there is no workload and no tag {name!r}",
                f"{_near(name, [*WORKLOADS, *TAGS])}; weft bench --list shows all; tags: {', '.join(TAGS)}",
            )  # fmt: skip
    return list(wanted)


def peers(names: Iterable[str], known: Iterable[str], default: Iterable[str]) -> list[str]:
    """Names of peers; "all" for every one, nothing for those that are measured by default."""
    listed, chosen = list(known), list(names)
    for name in chosen:
        if name not in listed and name != "all":
            raise OptionError(
                f"weft bench --peers {name}", f"there is no peer {name!r}",
                f"{_near(name, listed)}; peers: {', '.join(listed)}",
            )  # fmt: skip
    if "all" in chosen:
        return listed
    return [name for name in listed if name in (chosen or list(default))]


def _near(name: str, known: list[str]) -> str:
    near = get_close_matches(name, known, n=4, cutoff=0.4) or [x for x in known if name in x][:4]
    return f"use {' or '.join(near)}" if near else "use one of those listed"
