"""When kernels and exchanges run on a rank, from torch's profiler."""

from __future__ import annotations

import csv
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


def profiled(call: Callable[[], Any], path: Path, rank: int) -> None:
    """Write the intervals of one call: rank, stream, what, begin and end in microseconds."""
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
    for _ in range(3):
        call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    dist.barrier()
    with profile(activities=activities) as found:
        if torch.cuda.is_available():
            torch.cuda._sleep(20_000_000)  # meanwhile the host runs ahead, which a profiler slows down
        call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, "trace.json")
        found.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    rows = [
        (x["args"].get("stream", 0), x["name"][:80], float(x["ts"]), float(x["ts"]) + float(x["dur"]))
        for x in events
        if x.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset") and "dur" in x and "spin" not in x["name"]
    ]  # fmt: skip
    first = min((begin for _, _, begin, _ in rows), default=0.0)
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, sorted((s, n, b - first, e - first) for s, n, b, e in rows))
    if rank == 0:
        with path.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("rank", "stream", "name", "begin_us", "end_us"))
            for of, intervals in enumerate(every):
                writer.writerows((of, s, n, f"{b:.1f}", f"{e:.1f}") for s, n, b, e in intervals)
