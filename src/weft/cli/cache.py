"""`weft cache`: what is kept on disk between processes."""

from __future__ import annotations

import json
import time
from typing import Any

import click

from weft.cli.progress import busy
from weft.cli.say import say
from weft.errors import OptionError
from weft.store import Entry, Store, opened


@click.command("cache")
@click.argument("action", type=click.Choice(["list", "size", "verify", "clear"]))
@click.option("--yes", is_flag=True, help="Clear without asking.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(action: str, yes: bool, as_json: bool) -> None:
    """Look after what is kept on disk between processes: compiled kernels, and what was measured of them.

    \b
    list    What is there, the least recently used first.
    size    How much of it, and the most that is kept.
    verify  Check every file; the exit code is 1 where one is damaged.
    clear   Remove all that weft put there, and nothing else.

    WEFT_CACHE_DIR names the directory ("off": nothing is kept), WEFT_CACHE_MIB the most that is kept.
    """
    kept = opened()
    if yes and action != "clear":
        raise OptionError(f"weft cache {action} --yes", "nothing is asked there", "leave --yes out")
    if action == "clear" and not yes and kept.entries():
        _confirm(kept, as_json)
    look, report = ACTIONS[action]
    with busy(f"cache {action}"):
        facts = {"directory": str(kept.root) if kept.root else None, **look(kept)}
    say(json.dumps(facts, indent=2) if as_json else report(facts))
    if facts.get("damaged"):
        raise SystemExit(1)


def _confirm(kept: Store, as_json: bool) -> None:
    """Ask, or refuse where the question would mix with the object that is printed."""
    if as_json:
        raise OptionError("weft cache clear --json", "nobody confirms it", "add --yes")
    click.confirm(f"Remove {size(cache_facts(kept)['bytes'])} of weft's from {kept.root}?", abort=True)


# ---- facts -----------------------------------------------------------------------------------------------------------
def _list(kept: Store) -> dict[str, Any]:
    return {"entries": [_entry(kept, one) for one in kept.entries() if one.state == ""]}


def _entry(kept: Store, one: Entry) -> dict[str, Any]:
    """used: seconds since 1970; the facts of a damaged entry may be empty."""
    key = one.path.name
    return {**one.facts(), "key": key, "bytes": one.nbytes, "used": one.used, "timings": kept.timings(key)}


def cache_facts(kept: Store) -> dict[str, Any]:
    """directory: None where nothing is kept. bytes: of everything, also of what is set aside. limit: the most of it."""
    found = kept.entries()
    return {
        "directory": str(kept.root) if kept.root else None,
        "entries": sum(one.state == "" for one in found),
        "set_aside": sum(one.state == "damaged" for one in found),
        "bytes": sum(one.nbytes for one in found),
        "limit": kept.limit,
    }


def _verify(kept: Store) -> dict[str, Any]:
    """damaged: what is wrong, by key."""
    return {"entries": cache_facts(kept)["entries"], "damaged": kept.verify()}


def _clear(kept: Store) -> dict[str, Any]:
    removed, nbytes = kept.clear()
    return {"removed": removed, "bytes": nbytes}


# ---- words -----------------------------------------------------------------------------------------------------------
def size(nbytes: int) -> str:
    """Bytes as one says them."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.1f} {name}"
    return f"{nbytes / 2**10:.1f} KiB"


def _age(seconds: float) -> str:
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{seconds // unit:.0f} {name}"
    return f"{max(seconds, 0):.0f} s"


def _say_list(facts: dict[str, Any]) -> str:
    rows = [
        ("kernel", "target", "triton", "size", "made", "used", "compiled in", "timings"),
        *map(_row, facts["entries"]),
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(f"{x:<{width}}" for x, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([_where(facts), *lines]) if facts["entries"] else f"{_where(facts)}\nno entries"


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    now = time.time()
    made = f"{_age(now - one['made'])} ago" if "made" in one else "?"
    took = f"{one['compile_seconds']:.1f} s" if "compile_seconds" in one else ""
    named = [str(one.get(fact, "")) for fact in ("name", "target", "triton")]
    named[0] = named[0] or f"{one['key'][:12]}, damaged"
    return (*named, size(one["bytes"]), made, f"{_age(now - one['used'])} ago", took, str(len(one["timings"])))


def amount(facts: dict[str, Any]) -> str:
    """`cache_facts` in one line."""
    if facts["directory"] is None:
        return _where(facts)
    aside = f", {facts['set_aside']} damaged and set aside" if facts["set_aside"] else ""
    sizes = f"{size(facts['bytes'])} of {size(facts['limit'])} at most"
    return f"{_where(facts)}: {_counted(facts['entries'])}{aside}, {sizes}"


def _say_verify(facts: dict[str, Any]) -> str:
    lines = [f"{key}: {problem}" for key, problem in facts["damaged"].items()]
    count = _counted(facts["entries"])
    found = f"{len(lines)} of {count} damaged; each is set aside when it is next looked for"
    return "\n".join([_where(facts), *lines, found if lines else f"{count}, none damaged"])


def _say_clear(facts: dict[str, Any]) -> str:
    return f"{_where(facts)}\nremoved {facts['removed']} directories, {size(facts['bytes'])}"


def _counted(entries: int) -> str:
    return "1 entry" if entries == 1 else f"{entries} entries"


def _where(facts: dict[str, Any]) -> str:
    return facts["directory"] or "nothing is kept: WEFT_CACHE_DIR=off"


ACTIONS = {
    "list": (_list, _say_list),
    "size": (cache_facts, amount),
    "verify": (_verify, _say_verify),
    "clear": (_clear, _say_clear),
}
