"""KernelSpec: all that changes the generated code, and nothing that a length, a window or a batch size changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from weft.kernels.gpu.score.spec import Rules
from weft.planning.features import HELD
from weft.planning.problem import DTYPES
from weft.planning.tiling import Direction

NARROW = 64
# Head dimensions at which dK and dV have the registers to hold keys; of 49 to 64 they are 64 wide.
KEYS_HELD = (*range(49, 65), *range(97, 129))
SHORT_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
# What a profiler shows of a direction and of the family of its kernels.
SYMBOLS = {
    "forward": "fwd", "dq": "bwd_dq", "dkdv": "bwd_dkdv", "delta": "bwd_delta", "gradients": "bwd_fused",
    "few_keys": "bwd_sparse_keys", "few_sums": "reduce_partials",
}  # fmt: skip


class Strided:
    """A kernel that is told strides."""

    dtype: str
    d: int
    dv: int
    aligned: bool

    @property
    def sizes(self) -> str:
        """Head dimensions and dtype, as they end the name that a profiler shows."""
        dims = f"{self.d}" if self.d == self.dv else f"{self.d}x{self.dv}"
        return f"d{dims}_{SHORT_DTYPES[self.dtype]}"

    @property
    def unit(self) -> int:
        """Elements that strides count in: 16 bytes where rows are aligned."""
        return 16 // DTYPES[self.dtype] if self.aligned else 1


@dataclass(frozen=True)
class KernelSpec(Strided):
    """One generated kernel.

    direction: "forward" and "dq" keep a tile of queries and walk keys, "dkdv" the other way; "delta" walks nothing;
    "gradients" makes all of them in one walk over queries (`hopper.bwd_fused`), and "few_keys" and "few_sums" add
    what few keys beside the walk's window have of them (`hopper.bwd_sparse_keys`, `hopper.reduce_partials`).
    dtype: of q, k and v. d, dv: head dimensions. rank: axes of the grid that the tiles are boxes of; 0: tiles of the
    remainder. rows x cols: the pairs of one tile, rows of the side that stays. aligned: rows of all tensors begin on 16
    bytes and are dense, no tile spans 2^31 elements, and no stride 2^31 times 16 bytes. formula: every bound is one of
    at most two staircases, or a grid's; else lists are walked. lines: one clipped line a side. listed: queries or keys
    are gathered through a table, or left out by one. ordered: both are gathered in the order of a list, and bounds are
    between places in it. several: a tile walks several terms, one after the other. terms:
    so many in one loop. more: one, and in the same loop one run of full tiles of others after its own. whole: every
    column of a box on a grid exists. grouped: not one query head for each head of keys, so that "dkdv" walks them.
    split: several items add to the same rows, in no fixed order. with_dq: "dkdv" adds to dQ as well, so and in float32,
    from the zeros that "delta" leaves. packed: several launches in one, so that a program first reads which is its own.
    accumulate: results are added to what came before, in float32. makes: of dK and dV, where each has a launch of its
    own. few: of few keys, in `Sums`, which has a row for each of these alone. joins: what others left there is added to
    results. lse_gradient: there is one. with_delta: what dK and dV have in Stats is left in Delta too, which the
    gradient of sinks takes. held: what products take in every tile stays in registers, for cards whose products read it
    there. no_maximum: the short form of the forward (`tile.fwd`). rescaled: the scale is not clearly above zero, so
    scores are multiplied by it before their largest is taken. tf32: products of float32 keep 10 bits of its mantissa.
    chained: of a chain of launches each begins while the one before it ends (programmatic dependent launch), and waits
    for that before it reads what that left. fast_log: logarithms of sums are NVIDIA's own instruction, right to 2^-22.
    partial: sums of rows stay in parts until the end, one of each thread that has a part of the row. groups: warp
    groups that specialise, see `weft.kernels.gpu.hopper`; 0: none. short: of a forward by these, see
    `hopper.fwd_short`. told: of others, the tables hold the bounds of every row, see `hopper.fwd_overlapped`.
    counted: and how many blocks there are, see `tables.batches.Wave`. boxed:
    its whole tiles leave by a TMA descriptor; else it has one argument for each tensor that it writes. rules: score
    functions, None for none. dropout: some weights are dropped. paged: keys lie in pages of so many tokens, whose first
    ones the tables list; 0: one after the other.
    """

    direction: Direction | Literal["delta", "gradients", "few_keys", "few_sums"]
    dtype: str
    d: int
    dv: int
    rank: int
    rows: int
    cols: int
    aligned: bool = True
    formula: bool = True
    lines: bool = False
    listed: bool = False
    ordered: bool = False
    several: bool = False
    terms: int = 1
    more: bool = False
    whole: bool = False
    grouped: bool = False
    split: bool = False
    with_dq: bool = False
    packed: bool = False
    accumulate: bool = False
    makes: Literal["both", "dk", "dv"] = "both"
    few: bool = False
    joins: bool = False
    lse_gradient: bool = False
    with_delta: bool = False
    held: bool = False
    no_maximum: bool = False
    softcap: bool = False
    alibi: bool = False
    sinks: bool = False
    rescaled: bool = False
    tf32: bool = False
    rules: Rules | None = None
    dropout: bool = False
    chained: bool = False
    fast_log: bool = False
    partial: bool = False
    apart: bool = False  # on one axis: tiles with an edge in a loop of their own before the full ones
    groups: int = 0
    short: bool = False
    told: bool = False
    counted: bool = False
    boxed: bool = True
    paged: int = 0
    upcast: bool = False  # operands to float32: Triton's interpreter multiplies bfloat16, which masks use, wrongly
    warps: int = 8
    stages: int = 3
    registers: int = 0  # the most that a thread may use; 0: what the compiler takes

    @property
    def name(self) -> str:
        """A short readable name; the content decides, not the name."""
        dims = f"{self.d}" if self.d == self.dv else f"{self.d}x{self.dv}"
        where = "blocks" if self.rank == 0 else f"{self.rank}d"
        tile = f"rows_{self.rows}" if self.direction == "delta" else f"{where}_{self.rows}x{self.cols}"
        options = "".join(
            f"_{x}"
            for x in (
                "listed",
                "ordered",
                "several",
                "more",
                "whole",
                "grouped",
                "split",
                "with_dq",
                "packed",
                "accumulate",
                "few",
                "joins",
                "lse_gradient",
                "with_delta",
                "held",
                "no_maximum",
                "softcap",
                "alibi",
                "sinks",
                "rescaled",
                "tf32",
                "dropout",
                "chained",
                "fast_log",
                "partial",
                "apart",
                "lines",
                "short",
                "told",
                "counted",
            )
            if getattr(self, x)
        )
        options = f"_{self.terms}_terms" * (self.terms > 1) + f"_{self.groups}_groups" * bool(self.groups) + options
        options += ("" if self.boxed else "_unboxed") + f"_pages_{self.paged}" * bool(self.paged)
        options += "" if self.rules is None else f"_score_{self.rules.digest}"
        made = "" if self.makes == "both" else f"_{self.makes}"
        return f"{self.direction}{made}_{self.dtype}_{dims}_{tile}{options}" + (
            "_any" * (not self.aligned) + "_table" * (not self.formula and self.rank > 0)
        )

    @property
    def symbol(self) -> str:
        """What a profiler shows: direction, family, structure, head dimension and dtype; several specs may share it.

        Families: hopper, whose warp groups specialise, and tile. Structures: blocks of the remainder; grids by their
        axes; lines of tokens by the number of terms in one loop, bounds from a table or by a list told apart.
        """
        made = {"both": "", "dk": "dk", "dv": "dv"}[self.makes]
        direction = f"bwd_{made}" if made else SYMBOLS[self.direction] + "_dq" * (self.of_keys and self.with_dq)
        parts = ["weft", direction, "hopper" if self.groups else "tile", "short" * self.short, self._structure]
        return "_".join(filter(None, [*parts, self.sizes, "tf32" * self.tf32]))

    @property
    def _structure(self) -> str:
        if self.direction in ("delta", "few_keys", "few_sums"):
            return ""
        if self.rank != 1:
            return f"grid{self.rank}" if self.rank else "blocks"
        kind = "listed_line" if self.listed else "line" if self.formula else "table_line"
        kind = f"ordered_{kind}" if self.ordered else kind
        return f"{kind}s" if self.several else f"{kind}{self.terms}" if self.terms > 1 else kind

    @property
    def of_keys(self) -> bool:
        """Whether keys stay and queries are walked."""
        return self.direction == "dkdv"

    @property
    def factors(self) -> tuple[str, ...]:
        """Of the rows that stay, those that are held: as many as there are registers for (sm_90)."""
        wide = max(self.d, self.dv)
        if self.groups or not self.held or self.rank == 0 or not self.aligned or self.rows != 16 * self.warps:
            return ()  # of a tile that warps share by columns no warp can hold its rows
        if self.direction == "dq" and wide in HELD:
            return ("q", "do") if self.formula and not (self.several or self.listed) else ("q",)
        crowded = self.several or self.listed or self.packed or self.with_dq or (self.grouped and not self.formula)
        room = self.rank == 1 and wide in KEYS_HELD and self.folded and not crowded
        return ("k",) if self.of_keys and room else ()

    @property
    def gathered(self) -> bool:
        """Whether tokens of a tile may be any, so that each has an address of its own."""
        return self.listed or self.ordered

    @property
    def narrow(self) -> bool:
        """Whether heads leave a forward's programs so few instructions and registers that each counts."""
        return max(self.d, self.dv) <= NARROW

    @property
    def few_edges(self) -> bool:
        """Whether bounds are for tiles with an edge alone, and some of the terms may have none: tokens that see all.

        Not for listed tokens, whose dK and dV would then spill inside their loops (sm_90).
        """
        return self.several and self.rank == 1 and not (self.listed or self.with_dq)

    @property
    def folded(self) -> bool:
        """Whether dK and dV subtract lse and delta inside their products: see `tile.bwd_dkdv.Folding`."""
        return self.linear and self.dtype != "float32" and not self.dropout

    @property
    def leaves_delta(self) -> bool:
        """Whether Delta is written: dK and dV read it where Stats do not hold it."""
        return self.with_delta or not self.folded

    @property
    def linear(self) -> bool:
        """Scores are scale * (q . k) and nothing else, so the scale joins the exponential's subtraction."""
        return not (self.softcap or self.alibi or self.rescaled or self.rules)
