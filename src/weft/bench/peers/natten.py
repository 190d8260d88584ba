"""NATTEN: neighbourhoods of 1 to 3 dimensions; on plain windows its border rule computes another mask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from weft.bench.peers.base import Peer, Prepared, missing
from weft.testing.masks import Band, Neighborhood
from weft.testing.workloads import Workload


@dataclass(frozen=True)
class Natten(Peer):
    """na1d, na2d or na3d with the library's own choice of kernel and tiles."""

    def reason_absent(self, device: str) -> str:
        absent = missing("natten", device)
        if not absent:
            import natten

            absent = "" if natten.HAS_LIBNATTEN else "natten was built without its kernels"
        return absent

    def reasons_against(self, workload: Workload, direction: str, device: str) -> list[str]:
        reasons = ["no attention sinks"] if workload.sinks else []
        if arguments(workload) is None:
            reasons.append("neighbourhoods and closed windows only")
        return reasons

    def different_mask(self, workload: Workload) -> str:
        mask = workload.mask
        if isinstance(mask, Band) and mask.right:
            return "windows are pushed inwards at the ends of the sequence"
        return ""

    def prepare(self, workload: Workload, tensors: Any) -> Prepared:
        import natten

        found = arguments(workload)
        assert found is not None
        shape, options = found
        function = {1: natten.na1d, 2: natten.na2d, 3: natten.na3d}[len(shape)]

        def run(q: Any, k: Any, v: Any) -> Any:
            return function(*(x.unflatten(1, shape) for x in (q, k, v)), **options).flatten(1, len(shape))

        return Prepared(run)


def arguments(workload: Workload) -> tuple[tuple[int, ...], dict[str, Any]] | None:
    """(shape of the grid, keyword arguments) of the neighbourhood nearest to the mask."""
    mask = workload.mask
    if isinstance(mask, Neighborhood):
        return mask.shape, mask.options
    if not isinstance(mask, Band) or mask.left is None or workload.m != workload.n:
        return None
    if mask.right not in (0, mask.left):
        return None
    size, causal = (mask.left + mask.right) // mask.step + 1, mask.right == 0
    return (workload.n,), {"kernel_size": (size,), "dilation": (mask.step,), "is_causal": (causal,)}


def peers() -> list[Peer]:
    """One."""
    return [Natten("natten", package="natten", layout="bshd")]
