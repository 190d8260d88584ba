"""Figures that this repository has no rows for, with their source: shown apart, compared with nothing."""

from __future__ import annotations

from typing import NamedTuple


class Quoted(NamedTuple):
    """Useful TFLOP/s of one problem, forward and backward."""

    workload: str
    fwd: float
    bwd: float


NATTEN_SOURCE = (
    "NATTEN 0.21.7.dev1 with its Hopper kernels built for sm_90a, on one NVIDIA H200, torch 2.11.0+cu130, bfloat16, "
    "2026-11-20: device-event medians of the best of all its tile configurations, token permutes included. Measured "
    "before this benchmark existed, in no run with the rows above"
)
NATTEN = (
    Quoted("na2d_128x128_k21", 80, 56),
    Quoted("na3d_30x48x80_k18x24x24", 196, 145),
    Quoted("hunyuan_w18x24x24_st16x8x8", 553, 265),
    Quoted("flux_4k_w80", 296, 213),
    Quoted("flux_4k_w80_st16", 557, 259),
    Quoted("na1d_32768_w2048", 376, 230),
    Quoted("na1d_16384_w513", 163, 108),
    Quoted("na2d_128x128_k13", 44, 39),
    Quoted("na2d_64x64_k7", 8, 10),
)
