"""The problems that weft is measured on, by name. Tests, tuner and benchmark index them alike.

    WORKLOADS["causal_window_1024"].make()  ->  causal() & window(left=1023)
    WORKLOADS["causal_window_1024"].small() ->  the same at a few hundred tokens

Tags: core (the dozen that every result page shows), decoder (keys of the past only), grid, decode (a few queries). Also
model (taken from a published model), scaling (one mask at growing lengths), quoted (others have published figures for
it), stof, cpu (small, float32).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, log2
from typing import Any

import numpy as np

from weft.pattern.algebra import Pattern
from weft.planning.problem import DTYPES, Problem
from weft.testing.masks import (
    Band,
    BigBird,
    Chunks,
    Dilations,
    Documents,
    Full,
    Longformer,
    Mask,
    Neighborhood,
    Predicate,
    Prefix,
    RandomBlocks,
    SparseTransformer,
    Strided,
    Table,
    TextImage,
)

SMALL = 512  # tokens, about, of a reduced workload


@dataclass(frozen=True)
class Workload:
    """q (batch, q_heads, m, d), k (batch, kv_heads, n, d), v (batch, kv_heads, n, dv), and what may be attended.

    sinks: one logit per query head joins every row. source: where the sizes come from.
    """

    name: str
    batch: int
    q_heads: int
    kv_heads: int
    m: int
    n: int
    d: int
    mask: Mask
    dv: int = 0  # 0: as d
    dtype: str = "bfloat16"
    tags: tuple[str, ...] = ()
    sinks: bool = False
    source: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "dv", self.dv or self.d)

    def make(self) -> Pattern:
        """The pattern; where m != n, queries are aligned with the last keys."""
        pattern = self.mask.pattern()
        return pattern if self.m == self.n else pattern.aligned("bottom-right")

    def predicate(self, table: Table = np.asarray) -> Predicate:
        """The mask as a formula on indices (b, h, q, k) of numpy or torch; `table` makes arrays of that library."""
        formula, shift = self.mask.formula(table, self.n), self.n - self.m
        return formula if not shift else lambda b, h, q, k: formula(b, h, q + shift, k)

    @cached_property
    def per_head(self) -> bool:
        """Whether heads have different masks."""
        return self.make().extent()[1] is not None

    @cached_property
    def nnz(self) -> int:
        """Live pairs over all batch rows and query heads."""
        pattern, heads = self.make(), range(self.q_heads if self.per_head else 1)
        shared = self.batch * (1 if self.per_head else self.q_heads)
        return shared * sum(pattern.acsr(self.m, self.n, 0, head).nnz for head in heads)

    @property
    def share(self) -> float:
        """Live pairs out of all."""
        return self.nnz / (self.batch * self.q_heads * self.m * self.n)

    def problem(self, device: str) -> Problem:
        """As the planner sees it."""
        return Problem(
            self.batch, self.q_heads, self.kv_heads, self.m, self.n, self.d, self.dv, self.dtype, device
        )  # fmt: skip

    def flops(self, direction: str) -> int:
        """Useful operations: two products of a pair forward; five backward, three of them over d."""
        each = 2 * (self.d + self.dv) if direction == "fwd" else 2 * (3 * self.d + 2 * self.dv)
        return each * self.nnz

    def nbytes(self, direction: str) -> int:
        """Bytes of q, k, v and out, each once; backward those and their gradients."""
        numbers = self.q_heads * self.m * (self.d + self.dv) + self.kv_heads * self.n * (self.d + self.dv)
        return (1 if direction == "fwd" else 2) * self.batch * numbers * DTYPES[self.dtype]

    @property
    def shape(self) -> str:
        """B, heads, lengths and dimensions as a short text."""
        heads = f"{self.q_heads}" if self.q_heads == self.kv_heads else f"{self.q_heads}:{self.kv_heads}"
        tokens = f"{self.n}" if self.m == self.n else f"{self.m}x{self.n}"
        return f"({self.batch},{heads},{tokens},{self.d if self.d == self.dv else f'{self.d}/{self.dv}'})"

    def small(self) -> Workload:
        """The same kind of problem at about SMALL tokens, with few and short heads."""
        by = 1 << max(0, ceil(log2(self.n / SMALL)))
        mask = self.mask.reduced(by)
        m, n = (mask.tokens or max(1, x // by if x > SMALL else x) for x in (self.m, self.n))
        return replace(
            self, name=f"{self.name}.small", mask=mask, m=m, n=n, batch=min(self.batch, 2), d=16, dv=16, dtype="float32"
        )  # fmt: skip


def square(name: str, sizes: tuple[int, ...], mask: Mask, tags: str = "", **more: Any) -> Workload:
    """sizes: (B, H, D) or (B, Hq, Hkv, D), with the mask's own length; or with M == N before D."""
    *heads, last = sizes
    if mask.tokens is None:
        *heads, n = heads
    else:
        n = mask.tokens
    batch, q_heads, kv_heads = heads if len(heads) == 3 else (*heads, heads[-1])
    return Workload(name, batch, q_heads, kv_heads, n, n, last, mask, tags=tuple(tags.split()), **more)


def _core() -> Iterable[Workload]:
    near = Band(256, 256)
    documents = Documents((1000, 3000, 500, 7000, 2000, 1500, 900, 484))
    yield square("dense", (1, 16, 16384, 128), Full(), "core")
    yield square("dense_d64", (4, 12, 16384, 64), Full(), "core")
    yield square("causal", (1, 16, 16384, 128), Band(), "core decoder")
    yield square("causal_window_1024", (1, 16, 32768, 128), Band(1023), "core decoder")
    yield square("window_pm256", (4, 12, 16384, 64), near, "core")
    yield square("longformer_w512_g64", (4, 12, 16384, 64), Longformer(256, 64), "core")
    yield square("dilated_w512_d4", (4, 12, 16384, 64), Band(1024, 1024, 4), "core")
    yield square("strided_l128_s128", (1, 16, 16384, 64), Strided(128, 128), "core decoder")
    yield square("chunk_2048_causal", (1, 16, 32768, 128), Chunks(2048), "core decoder")
    yield square("na2d_128x128_k21", (1, 16, 128), Neighborhood((128, 128), (21, 21)), "core grid")
    yield square("na3d_30x48x80_k18x24x24", (1, 24, 128), Neighborhood((30, 48, 80), (18, 24, 24)), "core grid quoted")
    yield square("document_causal", (1, 16, 128), documents, "core decoder")


# A quarter of the bytes of each module of Python 3.11's asyncio, in alphabetical order. The last one is cut so that
# they fill 65536 tokens. These are lengths of real files, most of them short and a few long.
FILES = (297, 835, 18703, 501, 2217, 661, 278, 850, 7106, 438, 601, 3553, 4753, 31, 120, 8316, 1739, 1993, 1710, 10834)


def _models() -> Iterable[Workload]:
    """Language models: sizes from their published configurations."""
    yield square("mistral_window_4096", (1, 32, 8, 32768, 128), Band(4095), "model decoder", source="Mistral 7B")
    yield square("gemma3_local_1024", (1, 16, 8, 16384, 256), Band(1023), "model decoder", source="Gemma 3 12B, 5 of 6")
    yield square("gemma3_global", (1, 16, 8, 16384, 256), Band(), "model decoder", source="Gemma 3 12B, 1 of 6")
    yield square("llama4_chunk_8192", (1, 40, 8, 32768, 128), Chunks(8192), "model decoder", source="Llama 4 Scout")
    yield square(
        "gpt_oss_window_128", (1, 64, 8, 16384, 64), Band(127), "model decoder", sinks=True, source="gpt-oss-120b"
    )
    yield square("longformer_base_4096", (8, 12, 4096, 64), Longformer(256, 1), "model", source="Longformer base")
    yield square("bigbird_base_4096", (8, 12, 4096, 64), BigBird(), "model", source="BigBird base, ITC")
    yield square(
        "sparse_transformer_strided", (1, 8, 12288, 64), SparseTransformer(128, 8), "model decoder",
        source="arXiv 1904.10509",
    )  # fmt: skip
    yield square(
        "sparse_transformer_fixed", (1, 8, 12288, 64), SparseTransformer(128, 8, 32), "model decoder",
        source="arXiv 1904.10509, enwik8",
    )  # fmt: skip
    yield square("packed_files_64k", (1, 16, 128), Documents(FILES), "decoder", source="lengths of real files")
    yield square("prefix_lm_2048", (1, 16, 8192, 128), Prefix(2048), "")
    yield square("prefix_lm_4096", (1, 16, 16384, 128), Prefix(4096), "")
    share = Documents((2048, *(768,) * 8), shared=True)
    yield square("share_question", (1, 16, 128), share, "decoder", source="one question, eight answers")
    yield square("block_list_64", (1, 16, 32768, 128), RandomBlocks(51), "")
    yield square("mixed_dilation", (4, 12, 16384, 64), Dilations(64, (1,) * 3 + (2,) * 3 + (4,) * 3 + (8,) * 3), "")


def _grids() -> Iterable[Workload]:
    """Images and video: FLUX, HunyuanVideo, Cosmos-Predict2 (settings from the GNA paper, arXiv 2504.16922)."""
    flux, video, cosmos = (256, 256), (30, 48, 80), (24, 44, 80)
    yield square("flux_4k_w80", (1, 24, 128), Neighborhood(flux, (80, 80)), "model grid quoted")
    yield square("flux_4k_w80_st16", (1, 24, 128), Neighborhood(flux, (80, 80), (16, 16)), "model grid quoted")
    yield square(
        "hunyuan_w18x24x24_st16x8x8", (1, 24, 128), Neighborhood(video, (18, 24, 24), (16, 8, 8)), "model grid quoted"
    )
    yield square("hunyuan_w30x40x40", (1, 24, 128), Neighborhood(video, (30, 40, 40)), "model grid")
    layers = {
        "w4x16_d11x5": ((24, 4, 16), (1, 1, 1), (1, 11, 5)),
        "w12x16_st4_d1x5": ((24, 12, 16), (1, 4, 1), (1, 1, 5)),
        "w12x24_st4x8": ((24, 12, 24), (1, 4, 8), (1, 1, 1)),
        "w20x40_st4x8": ((24, 20, 40), (1, 4, 8), (1, 1, 1)),
        "w28x56": ((24, 28, 56), (1, 1, 1), (1, 1, 1)),
    }
    for name, options in layers.items():
        yield square(f"cosmos2_{name}", (1, 16, 128), Neighborhood(cosmos, *options), "model grid")
    image = Neighborhood((64, 64), (13, 13))
    yield square("text_image_512_64x64_k13", (1, 24, 128), TextImage(512, image), "grid")
    yield square("na1d_32768_w2048", (1, 16, 128), Neighborhood((32768,), (2048,)), "grid quoted")
    yield square("na1d_16384_w513", (4, 12, 64), Neighborhood((16384,), (513,)), "grid quoted")
    yield square("na2d_128x128_k13", (1, 16, 128), Neighborhood((128, 128), (13, 13)), "grid quoted")
    yield square("na2d_64x64_k7", (8, 8, 64), Neighborhood((64, 64), (7, 7)), "grid quoted")


def _decode() -> Iterable[Workload]:
    """A few new queries against a long cache, heads as in Llama 3 8B."""
    for name, m, mask in (("decode_128k", 1, Band()), ("decode_window_4096", 1, Band(4095)), ("verify_8", 8, Band())):
        yield Workload(name, 8, 32, 8, m, 131072, 128, mask, tags=("decode", "decoder"), source="Llama 3 8B heads")


def _stof() -> Iterable[Workload]:
    """BERT-base under the masks of STOF (arXiv 2506.06095): bands of sqrt(S), BigBird's blocks."""
    for batch, n in ((1, 128), (8, 512), (16, 2048), (16, 4096)):
        width = round(n**0.5)
        masks = {"sliding": Band(width - 1), "longformer": Longformer(width // 2, width), "bigbird": BigBird()}
        for name, mask in masks.items():
            yield square(f"stof_{name}_b{batch}_s{n}", (batch, 12, n, 64), mask, "stof", dtype="float16")


def _scaling() -> Iterable[Workload]:
    for power in range(12, 21):
        size = f"{1 << power - 10}k" if power < 20 else "1m"
        yield square(f"scaling_{size}", (1, 8, 1 << power, 128), Band(1023), "scaling decoder")


def _lengths() -> Iterable[Workload]:
    """Causal attention of 16384 tokens in sequences of one length, as most training has them."""
    for tokens in (512, 1024, 2048, 4096):
        yield square(f"causal_{tokens}", (16384 // tokens, 16, tokens, 128), Band(), "lengths decoder")


def _widths() -> Iterable[Workload]:
    """Two of the core at head dimensions that are no powers of two."""
    for dim in (80, 96):
        yield square(f"causal_d{dim}", (1, 16, 16384, dim), Band(), "widths decoder")
        yield square(f"causal_window_1024_d{dim}", (1, 16, 32768, dim), Band(1023), "widths decoder")


def _cpu() -> Iterable[Workload]:
    for name, sizes, mask in (
        ("cpu_causal_2048", (1, 8, 2048, 64), Band()),
        ("cpu_window_pm256", (1, 8, 8192, 64), Band(256, 256)),
        ("cpu_dilated_w512_d4", (1, 8, 8192, 64), Band(1024, 1024, 4)),
        ("cpu_na2d_64x64_k7", (1, 8, 64), Neighborhood((64, 64), (7, 7))),
    ):
        yield square(name, sizes, mask, "cpu", dtype="float32")


WORKLOADS: dict[str, Workload] = {
    w.name: w for part in (_core, _models, _grids, _decode, _stof, _scaling, _lengths, _widths, _cpu) for w in part()
}
TAGS: tuple[str, ...] = tuple(sorted({tag for w in WORKLOADS.values() for tag in w.tags}))


def named(name: str) -> Workload:
    """A workload by its name; "NAME.small" is the reduced one. KeyError if there is none."""
    whole, dot, _ = name.partition(".small")
    return WORKLOADS[whole].small() if dot else WORKLOADS[name]
