"""KernelSpec: all that changes the generated code, and nothing that a length, a window or a batch size changes."""

from __future__ import annotations

from dataclasses import dataclass, fields
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
    "forward": "fwd", "dq": "bwd_dq", "dkdv": "bwd_dkdv", "delta": "bwd_delta", "fused": "bwd_fused",
    "sparse_keys": "bwd_sparse_keys", "reduce_partials": "reduce_partials",
}  # fmt: skip


class Strided:
    """A kernel that takes strides."""

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
    """One generated kernel, of tiles or of Hopper's warp groups. `name` lists the flags that it has.

    Rows are those of the side that a program keeps, columns those of the side that it walks.
    """

    # "forward" and "dq" keep queries and walk keys; "dkdv" keeps keys and walks queries. "delta" walks nothing.
    # "fused" makes all gradients in one walk over queries (`hopper.bwd_fused`). "sparse_keys" and "reduce_partials"
    # add the part of keys beside the window (`hopper.bwd_sparse_keys`, `hopper.reduce_partials`).
    direction: Direction | Literal["delta", "fused", "sparse_keys", "reduce_partials"]
    dtype: str  # of q, k and v
    d: int
    dv: int
    rank: int  # axes of the grid that tiles are boxes of; 0: tiles of the remainder
    rows: int
    cols: int
    # Rows of all tensors begin on 16 bytes and are dense. No tile spans 2^31 elements, no stride 2^31 times 16 bytes.
    aligned: bool = True
    formula: bool = True  # every bound is one of at most two staircases, or a grid's; else lists are walked
    lines: bool = False  # one clipped line a side
    listed: bool = False  # queries or keys are gathered through a table, or left out by one
    ordered: bool = False  # both are gathered in the order of a list, and bounds are between places in it
    several: bool = False  # a tile walks several terms, one after the other
    terms: int = 1  # in one loop
    more: bool = False  # one term, and in the same loop one run of full tiles of others after its own
    whole: bool = False  # every column of a box on a grid exists
    boxes: tuple[tuple[int, ...], ...] = ()  # of queries and of keys, where a Hopper kernel walks a grid
    one_across: bool = False  # there: no block walks two tiles along the last axis
    grouped: bool = False  # query heads share keys, so "dkdv" walks several of them
    split: bool = False  # several items add to the same rows, in no fixed order
    with_dq: bool = False  # "dkdv" adds to dQ too, in float32, from the zeros that "delta" leaves
    # "dkdv" by warp groups: programs claim blocks from a counter, which "delta" sets to 0 (`hopper.ops.scheduler`)
    claims: bool = False
    stats32: bool = False  # of lists, whose dQ has the scale: Stats are pairs of float32 (`constants.PAIR`), not STATS
    packed: bool = False  # several launches in one, so a program first reads which is its own
    accumulate: bool = False  # results are added to earlier ones, in float32
    makes: Literal["both", "dk", "dv"] = "both"  # of dK and dV, where each has a launch of its own
    leaves_shared: bool = False  # sums are left in `Sums`, which has a row for each token that launches share
    adds_shared: bool = False  # sums that others left there are added to results
    lse_gradient: bool = False  # lse has a gradient
    with_delta: bool = False  # Delta is written beside Stats, for the gradient of sinks
    held: bool = False  # factors of every product stay in registers, where a card multiplies from these
    no_maximum: bool = False  # the forward subtracts no maximum (`tile.fwd`)
    softcap: bool = False
    alibi: bool = False
    sinks: bool = False
    rescaled: bool = False  # the scale may be 0 or less, so it multiplies scores before their maximum is taken
    tf32: bool = False  # products of float32 keep 10 bits of its mantissa
    rules: Rules | None = None  # score functions
    direct: bool = (
        False  # NVIDIA's own instructions read tables by distance, which Triton would stage, and drop weights
    )
    dropout: bool = False
    neighbours: bool = False  # with dropout: rows and columns of a tile are consecutive tokens from multiples of 16 on
    renumbered: bool = False  # dropout reads the numbers of queries and keys in a whole sequence, behind the seed
    # Programmatic dependent launch: a launch begins while the one before it ends, and waits before it reads results.
    chained: bool = False
    fast_log: bool = False  # logarithms of sums are NVIDIA's own instruction, right to 2^-22
    partial: bool = False  # until the end each thread sums its part of a row
    apart: bool = False  # on one axis: tiles with an edge have a loop of their own before the full ones
    groups: int = 0  # warp groups that consume (`weft.kernels.gpu.hopper`); 0: no specialised warps
    short: bool = False  # a Hopper forward of short runs (`hopper.fwd_short`)
    row_bounds: bool = False  # a Hopper kernel whose tables hold the bounds of every row (`hopper.fwd_overlapped`)
    counted: bool = False  # a Hopper kernel whose tables the device makes (`tables.batches.Wave`)
    batch_by_places: bool = False  # of descriptors of three axes (`descriptors.batch_axis`)
    boxed: bool = True  # a Hopper forward writes whole tiles by a TMA descriptor
    paged: int = 0  # tokens of a page of keys, whose first tokens tables list; 0: keys are contiguous
    upcast: bool = False  # operands become float32: Triton's interpreter multiplies bfloat16, which masks use, wrongly
    warps: int = 8
    stages: int = 3
    registers: int = 0  # the most that a thread may use; 0: what the compiler takes

    @property
    def name(self) -> str:
        """A short readable name; the content decides, not the name."""
        dims = f"{self.d}" if self.d == self.dv else f"{self.d}x{self.dv}"
        where = "blocks" if self.rank == 0 else f"{self.rank}d"
        tile = f"rows_{self.rows}" if self.direction == "delta" else f"{where}_{self.rows}x{self.cols}"
        options = f"_{self.terms}_terms" * (self.terms > 1) + f"_{self.groups}_groups" * bool(self.groups)
        options += "".join(f"_{flag}" for flag in FLAGS if getattr(self, flag))
        options += "".join(f"_box_{'x'.join(map(str, box))}" for box in self.boxes)
        options += ("" if self.boxed else "_unboxed") + f"_pages_{self.paged}" * bool(self.paged)
        options += "" if self.rules is None else f"_score_{self.rules.digest}"
        made = "" if self.makes == "both" else f"_{self.makes}"
        return f"{self.direction}{made}_{self.dtype}_{dims}_{tile}{options}" + (
            "_any" * (not self.aligned) + "_table" * (not self.formula and self.rank > 0)
        )

    @property
    def symbol(self) -> str:
        """What a profiler shows: direction, family, structure, head dimension and dtype; several specs may share it.

        Families are hopper, whose warp groups specialise, and tile. Structures are blocks of the remainder, grids by
        their axes, and lines of tokens by the number of terms in one loop. Lines also say whether bounds come from a
        table or a list.
        """
        made = {"both": "", "dk": "dk", "dv": "dv"}[self.makes]
        direction = f"bwd_{made}" if made else SYMBOLS[self.direction] + "_dq" * (self.of_keys and self.with_dq)
        parts = ["weft", direction, "hopper" if self.groups else "tile", "short" * self.short, self._structure]
        return "_".join(filter(None, [*parts, self.sizes, "tf32" * self.tf32]))

    @property
    def _structure(self) -> str:
        if self.direction in ("delta", "sparse_keys", "reduce_partials"):
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
        """Scores are scale * (q . k) and at most what score functions add, so the scale joins the exponential's
        subtraction.
        """
        return not (self.softcap or self.alibi or self.rescaled) and (self.rules is None or self.rules.adds)

    @property
    def adds(self) -> bool:
        """Whether score functions only add to scores, so that products begin with what they add."""
        return self.linear and self.rules is not None


# Fields that are false unless said, as `KernelSpec.name` lists them.
FLAGS = tuple(field.name for field in fields(KernelSpec) if field.default is False and field.name != "upcast")
