"""What a call costs the host, and what other processes do on the device that is measured."""

import time
from itertools import chain, repeat
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

from weft.bench import rows
from weft.bench.timing import BusyCores, Calls, HeldMemory

GIB = 1 << 30


def test_the_host_time_is_of_warm_calls():
    """Not of the first ones, which compile and allocate."""
    seconds = chain([0.05] * 3, repeat(0.0))
    event = SimpleNamespace(record=lambda: None, elapsed_time=lambda end: 1.0)
    with (
        mock.patch.object(torch.cuda, "synchronize"),
        mock.patch.object(torch.cuda, "_sleep"),
        mock.patch.object(torch.cuda, "Event", lambda enable_timing: event),
    ):
        calls = Calls([lambda: time.sleep(next(seconds))], "cuda")
    assert 0 < calls.host < 0.01
    assert calls.each == 2  # rounds of 2 ms, of calls that take the device one


@pytest.mark.parametrize(
    "free,said",
    [
        ((80, 80), ""),  # of 140 GiB torch holds 59, and its libraries one
        ((80, 70), f"{rows.DISTURBED} 11.0 GiB of the GPU"),
        ((70, 80), f"{rows.DISTURBED} 11.0 GiB of the GPU"),  # gone before the end
    ],
)
def test_memory_that_another_process_holds_is_told(free, said):
    with (
        mock.patch.object(torch.cuda, "mem_get_info", side_effect=[(x * GIB, 140 * GIB) for x in free]),
        mock.patch.object(torch.cuda, "memory_reserved", lambda: 59 * GIB),
    ):
        assert HeldMemory().message() == said


def test_a_busy_cpu_is_told():
    """Wall, busy over all cores and for this process: seconds."""
    with mock.patch.object(BusyCores, "_now", side_effect=[(0.0, 10.0, 1.0), (10.0, 25.0, 11.0)]):
        assert BusyCores().message() == f"{rows.DISTURBED} 0.5 cores busy"
    with mock.patch.object(BusyCores, "_now", side_effect=[(0.0, 10.0, 1.0), (10.0, 20.5, 11.0)]):
        assert BusyCores().message() == ""
