"""Times of ranks in step, bytes that arrive, and rows."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from table import append

COLUMNS = (
    "kind", "layer", "ranks", "tokens", "method", "shards", "direction", "ms", "one_gpu_ms", "bytes_counted",
    "bytes_planned", "peers", "imbalance", "predicted_ms", "off", "note", "device", "torch", "weft",
)  # fmt: skip


class Rows:
    """A CSV file to which rank 0 appends each row at once."""

    def __init__(self, path: Path | None, rank: int) -> None:
        self.path = path if rank == 0 else None
        self.rank = rank

    def add(self, **row: Any) -> None:
        if self.rank:
            return
        import weft
        from weft.bench.origin import machine

        device = torch.cuda.get_device_name() if torch.cuda.is_available() else machine("cpu")["machine"]
        row |= {"device": device, "torch": torch.__version__, "weft": weft.__version__}
        said = {name: f"{x:.5g}" if isinstance(x := row.get(name, ""), float) else x for name in COLUMNS}
        print(" ".join(str(x) for x in list(said.values())[:-3] if x != ""), flush=True)
        append(self.path, COLUMNS, said)


def sync(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed(
    call: Callable[[], Any], device: torch.device, group: Any, rounds: int = 5, warm: int = 2, calls: int = 1
) -> float:  # fmt: skip
    """Milliseconds of a call: the median over rounds of the slowest rank. group: gloo's, None: this process alone.

    calls: of a round, one after the other as layers of a model are: no rank waits for the others between them.
    """
    for _ in range(warm):
        call()
    sync(device)
    found = []
    for _ in range(rounds):
        if group is not None:
            dist.barrier(group=group)
        found.append(_once(call, device, calls) / calls)
    if group is not None:
        every: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(every, found, group=group)
        found = [max(each) for each in zip(*every, strict=True)]
    return median(found)


def _once(call: Callable[[], Any], device: torch.device, calls: int) -> float:
    if device.type != "cuda":
        begun = time.perf_counter()
        for _ in range(calls):
            call()
        return (time.perf_counter() - begun) * 1e3
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(4_000_000)  # two milliseconds in which the host runs ahead, as it does in a model
    first.record()
    for _ in range(calls):
        call()
    last.record()
    torch.cuda.synchronize(device)
    return float(first.elapsed_time(last))


class Counted:
    """The bytes that arrive from peers in exchanges by all_to_all_single."""

    def __enter__(self) -> list[int]:
        received: list[int] = []
        real, me = dist.all_to_all_single, dist.get_rank()

        def count(output: Any, source: Any, of: Any = None, to: Any = None, **options: Any) -> Any:
            each = [output.numel() // dist.get_world_size()] * dist.get_world_size() if of is None else of
            received.append((sum(each) - each[me]) * output.element_size())
            return real(output, source, of, to, **options)

        self.patch = mock.patch.object(dist, "all_to_all_single", count)
        self.patch.start()
        return received

    def __exit__(self, *_: object) -> None:
        self.patch.stop()


class Arrived:
    """An exchange in which nothing travels: what would come is whatever the memory holds, set to zero."""

    def __enter__(self) -> None:
        def nothing(output: Any, source: Any, of: Any = None, to: Any = None, **options: Any) -> Any:
            output.zero_()
            return mock.Mock()

        self.patch = mock.patch.object(dist, "all_to_all_single", nothing)
        self.patch.start()

    def __exit__(self, *_: object) -> None:
        self.patch.stop()
