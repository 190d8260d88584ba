"""Configurations of the kernels for Hopper: every number that belongs to a head dimension or a tile is a field here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from weft.kernels.gpu.spec import KernelSpec

RowMax = Literal["none", "first", "online"]


@dataclass(frozen=True)
class Config:
    """One kernel's tiles, warp groups and registers, and what it computes beside.

    d, dv: head dimensions. rows: of a consumer, of the side that stays. columns: of a tile of the side that is walked.
    consumers: warp groups that compute. stages: of the ring of tiles that they read. producer_warps: those that load.
    consumer_registers, producer_registers: of a thread; the first group of a kernel has what the others leave.
    first_tiles: tiles of a run that a forward's first consumer needs, which are asked for before others' queries.
    key_stages: of the fused walk's ring of keys. terms: that one walk has. short: runs are short (`fwd_short`). boxed:
    whole tiles of results leave by a descriptor.
    """

    d: int
    dv: int
    rows: int
    columns: int
    consumers: int
    stages: int
    producer_warps: int
    consumer_registers: int
    producer_registers: int
    first_tiles: int = 0
    key_stages: int = 0
    terms: int = 1
    short: bool = False
    sinks: bool = False
    boxed: bool = True
    lse_gradient: bool = False
    with_delta: bool = False

    @property
    def width(self) -> int:
        """Channels of q and k in shared memory: products want a power of two."""
        return _padded(self.d)

    @property
    def width_v(self) -> int:
        """The same of v."""
        return _padded(self.dv)


def _padded(channels: int) -> int:
    return 1 << (channels - 1).bit_length()


def config_of(spec: KernelSpec) -> Config:
    """The configuration of a kernel."""
    if spec.direction == "dkdv":
        return Config(
            spec.d, spec.dv, rows=64, columns=64, consumers=spec.groups, stages=spec.stages, producer_warps=4,
            consumer_registers=224, producer_registers=56,
        )  # fmt: skip
    if spec.direction == "gradients":
        return Config(
            spec.d, spec.dv, rows=64, columns=64, consumers=spec.groups, stages=3, key_stages=5, producer_warps=4,
            consumer_registers=160, producer_registers=0, lse_gradient=spec.lse_gradient, with_delta=spec.with_delta,
        )  # fmt: skip
    if spec.direction in ("few_keys", "few_sums"):
        return Config(
            spec.d, spec.dv, rows=64, columns=64, consumers=spec.groups, stages=2, producer_warps=1,
            consumer_registers=240, producer_registers=24,
        )  # fmt: skip
    return Config(
        spec.d, spec.dv, rows=64, columns=64, consumers=spec.groups, stages=spec.stages,
        producer_warps=4 if spec.short else 1, consumer_registers=112, producer_registers=24, first_tiles=3,
        terms=spec.terms, short=spec.short, sinks=spec.sinks, boxed=spec.boxed,
    )  # fmt: skip
