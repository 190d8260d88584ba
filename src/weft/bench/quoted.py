"""Figures that this repository has no rows for, with their source: shown apart, and marked where they are compared."""

from __future__ import annotations

from typing import NamedTuple


class Quoted(NamedTuple):
    """Useful TFLOP/s of one problem, forward and backward; weft's own where it ran in the same process."""

    workload: str
    fwd: float
    bwd: float
    weft_fwd: float = 0.0
    weft_bwd: float = 0.0


NATTEN_SOURCE = (
    "NATTEN 0.21.7.dev1 with its Hopper kernels built for sm_90a, on one NVIDIA H200, torch 2.11.0+cu130, bfloat16, "
    "2026-11-20. Medians of device events, of the best of all its tile configurations, token permutes included. It ran "
    "before this benchmark existed, beside no row above. Its dilated windows have another rule at the ends of a "
    "sequence"
)
NATTEN = (
    Quoted("na2d_128x128_k21", 80, 56),
    Quoted("na3d_30x48x80_k18x24x24", 196, 145),
    Quoted("dilated_w512_d4", 161, 107),
    Quoted("hunyuan_w18x24x24_st16x8x8", 553, 265),
    Quoted("flux_4k_w80", 296, 213),
    Quoted("flux_4k_w80_st16", 557, 259),
    Quoted("na1d_32768_w2048", 376, 230),
    Quoted("na1d_16384_w513", 163, 108),
    Quoted("na2d_128x128_k13", 44, 39),
    Quoted("na2d_64x64_k7", 8, 10),
)
CUDNN_SOURCE = (
    "Flex attention of cuDNN's frontend 1.32.0, by intervals of keys for each query, in one process with weft (commit "
    "6f457e5) on one NVIDIA H200, bfloat16, 2026-11-28. That card ran slower than those of the rows above, so compare "
    "within this table"
)
CUDNN = (
    Quoted("dense", 654, 596, 520, 446),
    Quoted("causal", 638, 592, 522, 441),
    Quoted("causal_window_1024", 481, 414, 407, 342),
    Quoted("chunk_2048_causal", 508, 439, 424, 344),
    Quoted("document_causal", 400, 472, 423, 358),
    Quoted("window_pm256", 200, 288, 417, 278),
    Quoted("longformer_w512_g64", 185, 223, 339, 278),
    Quoted("na2d_128x128_k21", 96, 84, 193, 152),
    Quoted("na2d_128x128_k13", 37, 49, 116, 93),
)
QUOTED = {"NATTEN": NATTEN, "cuDNN flex": CUDNN}
