"""Tables of plans on a device, and other memory there that outlives the call which made it.

Launches know addresses of tables alone. Memory belongs to the stream that copied it there, which may reuse it once
nobody holds it, while kernels on other streams still read it. So memory that nobody holds is kept until there is much
of it, and given back after a wait for all kernels.

A call may run while torch sends all memory of its thread to a pool. Inductor does so when it runs a function for its
first CUDA graph, and refuses memory there that is no output. So a thread of its own asks for memory that is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from weakref import WeakKeyDictionary, finalize

import torch

from weft.kernels.gpu.program import Table

# What torch.cuda's function comes to call. Once there is a tensor on a GPU, there is nothing to set up.
is_capturing = getattr(torch._C, "_cuda_isCurrentStreamCapturing", torch.cuda.is_current_stream_capturing)
MANY, LARGE = 256, 16 << 20  # tables that nobody holds, and their bytes, which are worth a wait
_idle: list[torch.UntypedStorage] = []
_copied: WeakKeyDictionary[Table, dict[torch.device, torch.Tensor]] = WeakKeyDictionary()
_lock = Lock()


def on_device(table: Table, device: torch.device) -> torch.Tensor:
    """A table on a device, copied once; kernels may read it while this tensor is held before each launch."""
    with _lock:
        there = _copied.setdefault(table, {})
        found = there.get(device)
    if found is not None:
        return found
    made = kept(lambda: torch.from_numpy(table.words).to(device), device)
    with _lock:
        return there.setdefault(device, made)


def kept(copy: Callable[[], torch.Tensor], device: torch.device) -> torch.Tensor:
    """What `copy` makes on a device, from the host, for a cache: in no pool of the caller, and waited for."""
    if device.type == "cpu":
        return copy()
    _give_back()
    with ThreadPoolExecutor(1, "weft-copy") as apart:
        made = apart.submit(copy).result()
    finalize(made, _idle.append, made.untyped_storage()).atexit = False
    return made


def _give_back() -> None:
    """What nobody holds, if it is much. Not while a graph is captured: it runs no kernel, and may not be waited for."""
    with _lock:
        gone = _idle[:]  # others may add to it meanwhile
        much = len(gone) >= MANY or sum(one.nbytes() for one in gone) >= LARGE
        if not much or is_capturing():
            return
        del _idle[: len(gone)]
    for device in {one.device for one in gone}:
        torch.cuda.synchronize(device)  # and then they go
