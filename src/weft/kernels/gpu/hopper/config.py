"""Configurations of the kernels for Hopper: every number that belongs to a head dimension or a tile is a field here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from weft.kernels.gpu.spec import KernelSpec
from weft.planning.tiling.gpu import own_box

LEAST, MOST = 2.0**-48, 2.0**120  # of sums of weights; the least where nothing is taken off scores
RowMax = Literal["none", "first", "online"]


@dataclass(frozen=True)
class Config:
    """One kernel's tiles, warp groups and registers, and what it computes beside.

    d, dv: head dimensions. rows: of a consumer, of the side that stays. columns: of a tile of the side that is walked.
    consumers: warp groups that compute. stages: of the ring of tiles that they read. producer_warps: those that load.
    consumer_registers, producer_registers: of a thread; the first group of a kernel has what the others leave.
    first_tiles: tiles of a run that a forward's first consumer needs, which are asked for before others' queries.
    query_stages: blocks of queries that a forward's consumer has in shared memory; with one, results lie where it lay.
    makes: of dQ, dK and dV, one alone where a launch makes each.
    key_stages: of a backward's ring of keys alone, 0: `stages`. row_max: what a forward takes off scores; "none": 0.
    "first" takes the largest score of a row in the consumer's first tile, or where that has no key for it in the
    second. "online" takes the largest so far. With the first two, rows whose sums leave the range from `least` to
    `most` are computed again. terms: that one walk has. short: runs are short (`fwd_short`). overlapped: scores of a
    tile are made beside the product of the weights before, and bounds of rows are read from the tables
    (`fwd_overlapped`). boxed: whole tiles of results leave by a descriptor. counted: tables say how many blocks there
    are, and runs may begin before token 0. box, tile_box: on a grid, those of a block's rows and of a tile.
    one_across: no block walks two tiles along the last axis. batch_by_places: beside three axes batch rows are one with
    the first axis, instead of with heads. listed: a run is a list of tiles, all of which a block sees whole.
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
    makes: str = "both"
    query_stages: int = 2
    key_stages: int = 0
    row_max: RowMax = "none"
    terms: int = 1
    short: bool = False
    overlapped: bool = False
    sinks: bool = False
    boxed: bool = True
    lse_gradient: bool = False
    with_delta: bool = False
    counted: bool = False
    listed: bool = False
    box: tuple[int, ...] = ()
    tile_box: tuple[int, ...] = ()
    one_across: bool = False
    batch_by_places: bool = False

    @property
    def axes(self) -> int:
        """Axes of a grid; 0 on a line."""
        return len(self.box)

    @property
    def own_box(self) -> tuple[int, ...]:
        """A consumer's box of rows."""
        return own_box(self.box, self.consumers)

    @property
    def width(self) -> int:
        """Dims of q and k in shared memory: products want a power of two."""
        return _padded(self.d)

    @property
    def width_v(self) -> int:
        """The same of v."""
        return _padded(self.dv)

    @property
    def ring_of_keys(self) -> int:
        """Stages of keys."""
        return self.key_stages or self.stages

    @property
    def fills(self) -> int:
        """Arrivals at a stage that is filled by descriptors and by each thread of the producer."""
        return 1 + 32 * self.producer_warps

    @property
    def least(self) -> float:
        """The least sum of weights that a forward's row may have. With "first" one weight is 1, mostly."""
        return LEAST if self.row_max == "none" else LEAST_OF_FIRST

    @property
    def most(self) -> float:
        """The largest sum. A weight that its 16 bits do not hold becomes infinite, and so does some sum of values."""
        return MOST


LEAST_OF_FIRST = 2.0**-8  # beneath it, rows that had nothing taken off lose digits: float16 has few below 2^-14
ROW_MAX: dict[str, RowMax] = {"bfloat16": "none", "float16": "first"}
# Of forwards: (registers of a thread that computes, of one that loads), by the wider head dimension, padded, and the
# number of consumers. The first group has what the others leave of the launch's.
FORWARDS = {(64, 4): (112, 24), (64, 1): (240, 24), (128, 2): (240, 24), (128, 1): (240, 24), (256, 2): (240, 24)}
# The same, where shared memory has no room for two blocks of queries: stages of queries and of keys.
CROWDED = {256: (1, 3)}
# Of tiles of dO, or of V, where gradients have a launch each: beside two factors that stay there is room for one.
LATER_STAGES = {"dv": 2, "dk": 1, "dq": 1}
FIRST_TILES = 3  # but not more than a ring holds while others' queries are not asked for yet


def _padded(dims: int) -> int:
    return max(16, 1 << (dims - 1).bit_length())


def config_of(spec: KernelSpec) -> Config:
    """The configuration of a kernel."""
    return OF_DIRECTION[spec.direction](spec)


def _key_gradients(spec: KernelSpec) -> Config:
    if spec.with_dq:
        return Config(
            spec.d, spec.dv, rows=spec.rows // spec.groups, columns=spec.cols, consumers=spec.groups,
            stages=spec.stages, producer_warps=1, consumer_registers=240, producer_registers=24, counted=spec.counted,
            listed=spec.rank == 0, **_boxed(spec),
        )  # fmt: skip
    if spec.boxes:
        return _boxes(spec, "both")
    if spec.makes != "both":
        return _apart(spec, spec.makes)
    return Config(
        spec.d, spec.dv, rows=spec.rows // spec.groups, columns=spec.cols, consumers=spec.groups, stages=spec.stages,
        producer_warps=4, consumer_registers=224, producer_registers=56,
    )  # fmt: skip


def _boxes(spec: KernelSpec, makes: str) -> Config:
    return Config(
        spec.d, spec.dv, rows=spec.rows // spec.groups, columns=spec.cols, consumers=spec.groups, stages=spec.stages,
        producer_warps=1, consumer_registers=240, producer_registers=24, makes=makes, lse_gradient=spec.lse_gradient,
        with_delta=makes == "dq" and spec.leaves_delta, one_across=spec.one_across, **_boxed(spec),
    )  # fmt: skip


def _query_gradients(spec: KernelSpec) -> Config:
    return _boxes(spec, "dq") if spec.boxes else _apart(spec)


def _apart(spec: KernelSpec, makes: str = "dq") -> Config:
    return Config(
        spec.d, spec.dv, rows=spec.rows // spec.groups, columns=spec.cols, consumers=spec.groups,
        stages=LATER_STAGES[makes], producer_warps=1, consumer_registers=240, producer_registers=24, makes=makes,
        lse_gradient=spec.lse_gradient, with_delta=makes == "dq" and spec.leaves_delta,
    )  # fmt: skip


def _fused(spec: KernelSpec) -> Config:
    return Config(
        spec.d, spec.dv, rows=spec.rows, columns=spec.rows, consumers=spec.groups, stages=3, key_stages=5,
        producer_warps=4, consumer_registers=160, producer_registers=0, lse_gradient=spec.lse_gradient,
        with_delta=spec.with_delta,
    )  # fmt: skip


def _sparse_keys(spec: KernelSpec) -> Config:
    return Config(
        spec.d, spec.dv, rows=spec.rows, columns=spec.rows, consumers=spec.groups, stages=2, producer_warps=1,
        consumer_registers=240, producer_registers=24,
    )  # fmt: skip


def _forward(spec: KernelSpec) -> Config:
    wide = max(_padded(spec.d), _padded(spec.dv))
    consumer, producer = FORWARDS[wide, spec.groups]
    query_stages, key_stages = CROWDED.get(wide, (2, 0))
    return Config(
        spec.d, spec.dv, rows=spec.rows // spec.groups, columns=spec.cols, consumers=spec.groups, stages=spec.stages,
        producer_warps=4 if spec.short else 1, consumer_registers=consumer, producer_registers=producer,
        first_tiles=min(FIRST_TILES, spec.stages // 2), query_stages=query_stages, key_stages=key_stages,
        row_max=ROW_MAX[spec.dtype], terms=spec.terms, short=spec.short,
        overlapped=spec.row_bounds, sinks=spec.sinks, boxed=spec.boxed, counted=spec.counted, listed=spec.rank == 0,
        one_across=spec.one_across, **_boxed(spec),
    )  # fmt: skip


def _boxed(spec: KernelSpec) -> dict[str, Any]:
    """What is said of a grid."""
    box, tile_box = spec.boxes or ((), ())
    return {"box": box, "tile_box": tile_box, "batch_by_places": spec.batch_by_places}


OF_DIRECTION = {
    "forward": _forward, "dq": _query_gradients, "dkdv": _key_gradients, "fused": _fused, "sparse_keys": _sparse_keys,
    "reduce_partials": _sparse_keys,
}  # fmt: skip
