"""The time of a call on the device, from a CUDA graph of many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from statistics import median
from typing import Any

import torch

LONG, REPLAYS, WARM = 2e-3, 10, 3  # seconds of a graph, replays that count, and before them


def microseconds(calls: Sequence[Callable[[], Any]]) -> float:
    """Of a call, in a graph of many that takes these in turn. It is captured on a stream of its own."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        one = median(_seconds(calls[0]) for _ in range(WARM))
        count = len(calls) * ceil(max(1, LONG / one) / len(calls))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for number in range(count):
                calls[number % len(calls)]()
        times = [_seconds(graph.replay) for _ in range(WARM + REPLAYS)]
    return 1e6 * median(times[WARM:]) / count


def _seconds(run: Callable[[], Any]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return 1e-3 * begin.elapsed_time(end)
