"""SplitKVSpec -> Config: what the functions of the split-KV kernel branch on while they are compiled."""

from __future__ import annotations

from typing import NamedTuple

from weft.kernels.gpu.split_kv.spec import SplitKVSpec
from weft.planning.tiling import chunks

Chunks = tuple[tuple[int, int, int], ...]


class Config(NamedTuple):
    """What a kernel is compiled for; see `SplitKVSpec` for fields of the same name.

    d, dv: chunks of both head dimensions. steps: some bound is a step function. page: tokens of a page of keys, 0 where
    they lie in none. paired: a tile of keys lies in two pages at most. precision: of products of float32, None for
    other types.

    The fragments of tile kernels ask for the rest. rank: keys lie on a line. linear: scores are scaled before their
    maximum is taken. of_keys: queries are the side that stays. scored, adds, dropout: there is no score function and
    no dropout.
    """

    rows: int
    cols: int
    d: Chunks
    dv: Chunks
    bounds: int
    steps: bool
    several: bool
    plain: bool
    group: int
    heads: int
    terms: int
    split: bool
    chained: bool
    page: int
    paired: bool
    softcap: bool
    alibi: bool
    upcast: bool
    precision: str | None
    rank: int = 1
    linear: bool = False
    of_keys: bool = False
    scored: bool = False
    adds: bool = False
    dropout: bool = False


class Combined(NamedTuple):
    """What a kernel that combines shares is compiled for. block: shares that are taken together; once: they are all."""

    dv: Chunks
    block: int
    once: bool
    chained: bool


def config_of(spec: SplitKVSpec) -> Config:
    """The configuration of a kernel that is not `combine`."""
    precision = "ieee" if spec.dtype == "float32" else None
    d, dv = chunks(spec.d), chunks(spec.dv)
    page = spec.counts.page
    return Config(
        spec.rows, spec.cols, d, dv, spec.bounds, spec.tables, spec.several, spec.plain, spec.group, spec.heads,
        spec.terms, spec.split, spec.chained, page, spec.plain and page >= spec.cols, spec.softcap, spec.alibi,
        spec.upcast, precision,
    )  # fmt: skip
