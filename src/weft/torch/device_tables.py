"""Tables of plans on a device.

Launches know addresses of tables alone. Memory belongs to the stream that copied it there, which may reuse it once
nobody holds it, while kernels on other streams still read it. So memory that nobody holds is kept until there is much
of it, and given back after a wait for all kernels.
"""

from __future__ import annotations

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
    _give_back()
    made = torch.from_numpy(table.words).to(device)
    if device.type != "cpu":
        finalize(made, _idle.append, made.untyped_storage()).atexit = False
    with _lock:
        return there.setdefault(device, made)


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
