"""What was measured of a segment, kept in the store for other processes; one entry for each segment, size and card.

The entry names all that a measurement rests on: the graph, its sizes, the card, torch and Triton. The text of the
modules that make and launch the kernels is named too. Rows are appended, and the last one holds.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from weft.fusion import cublaslt, kernels
from weft.fusion.kernels import Library
from weft.fusion.whole import Settled
from weft.kernels.gpu import gemm
from weft.kernels.gpu.gemm.config import Config
from weft.store import opened

KIND, FILE = "fusion", "segment.json"
FORMAT = 2
NUMBERS = ("unfused", "fused")
Row = dict[str, Any]


def subject_of(segment: str, code: str, sizes: Sequence[Any], inner: str) -> dict[str, Any]:
    """What a measurement is about. code: of the unfused graph. sizes: of its inputs, with their types. inner: the
    compiler of the unfused graph.
    """
    return {
        "format": FORMAT, "segment": segment, "graph": code, "sizes": repr(list(sizes)), "inner": inner,
        "card": torch.cuda.get_device_name(), **versions(),
    }  # fmt: skip


@cache
def versions() -> dict[str, str]:
    """What makes and launches the kernels."""
    import triton

    made = sha256()
    for path in (*sorted(Path(gemm.__path__[0]).glob("*.py")), Path(kernels.__file__), Path(cublaslt.__file__)):
        made.update(path.read_bytes())
    return {"torch": torch.__version__, "triton": triton.__version__, "kernels": made.hexdigest()[:16]}


def key_of(subject: dict[str, Any]) -> str:
    """Of its entry in the store."""
    return sha256(json.dumps([KIND, subject], sort_keys=True).encode()).hexdigest()


def known(subject: dict[str, Any]) -> Row | None:
    """The last row of a subject, checked; None where nothing was measured, or it is not as this module writes it."""
    kept, key = opened(), key_of(subject)
    rows = [] if kept.get(key) is None else kept.timings(key)
    return _read(rows[-1]) if rows else None


def _read(row: Any) -> Row | None:
    names = {"config", "reason", *NUMBERS, "dropped"}
    if not isinstance(row, dict) or row.keys() != names or not isinstance(row["reason"], str):
        return None
    if not all(isinstance(row[name], float) for name in NUMBERS) or not isinstance(row["dropped"], list):
        return None
    config = row["config"] if row["config"] is None else _tiling(row["config"])
    if config is None and row["config"] is not None:
        return None
    return {**row, "config": config, "dropped": tuple(map(str, row["dropped"]))}


def _tiling(said: Any) -> Config | Library | None:
    """None where it is none that this module writes."""
    if not isinstance(said, dict):
        return None
    for kind in (Config, Library):
        numbers = {name: x for name, x in said.items() if name != "name"}
        if said.keys() == {one.name for one in fields(kind)} and all(map(_is_size, numbers.values())):
            return kind(**said)
    return None


def _is_size(x: Any) -> bool:
    return isinstance(x, int) and 0 <= x <= 1024


def keep(subject: dict[str, Any], name: str, row: Row) -> bool:
    """Add a row; False where the store keeps none. name: for people."""
    said = {**row, "config": None if row["config"] is None else asdict(row["config"]), "dropped": list(row["dropped"])}
    return _append(subject, name, said)


def _append(subject: dict[str, Any], name: str, row: Row) -> bool:
    kept, key = opened(), key_of(subject)
    if kept.own(key) is None:
        facts = {"name": f"fusion {name}", "kind": KIND, "target": subject["card"], "triton": subject["triton"]}
        kept.put(key, facts, {FILE: json.dumps(subject).encode()})
    return kept.record(key, [row])


# ---- whole layers ----------------------------------------------------------------------------------------------------
def known_layer(subject: dict[str, Any]) -> Settled | None:
    """What was settled for a layer; None where nothing was."""
    kept, key = opened(), key_of(subject)
    rows = [] if kept.get(key) is None else kept.timings(key)
    try:
        row = rows[-1]
        seconds = {frozenset(map(int, kinds)): float(taken) for kinds, taken in row["seconds"]}
        found = Settled(frozenset(map(int, row["kept"])), seconds)
    except (IndexError, KeyError, TypeError, ValueError):
        return None
    return found if found.kept in seconds else None


def keep_layer(subject: dict[str, Any], found: Settled) -> bool:
    """Add what was settled."""
    seconds = [[sorted(kinds), taken] for kinds, taken in found.seconds.items()]
    return _append(subject, "a layer", {"kept": sorted(found.kept), "seconds": seconds})
