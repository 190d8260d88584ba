"""What split-KV kernels are made for, and which of them a plan takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from weft.kernels.gpu.spec import Strided
from weft.pattern.bounds import Stair
from weft.planning.families.split_kv import ByRows, RowShape
from weft.planning.problem import DTYPES
from weft.planning.rowwise import RowPlan
from weft.settings import interpreted

# 32-bit integers that grow step by step: from a query to the row of a term, and to the key beside it
# (for distances); the number of keys.
GROWING = ("shift", "beside", "length")
# Pages that there are, and the stride of a batch row of the block table.
PAGING = ("pages", "table_row")


class Counts(NamedTuple):
    """How a kernel learns the number of keys and where its queries stand.

    dtype: of the device slots that hold these, "" where the host gives them at each call. per_batch: each batch row has
    a number of its own. ring: token t lies at place t modulo the capacity. offset: the first query's token has a slot,
    and does not follow from the number of keys. window: a slot says how many tokens up to its own a query may see.
    page: keys lie in pages of so many tokens, which a block table names; 0: one after the other.
    """

    dtype: str = ""
    per_batch: bool = False
    ring: bool = False
    offset: bool = False
    window: bool = False
    page: int = 0

    @property
    def slots(self) -> tuple[str, ...]:
        """Arguments that point to device slots."""
        if not self.dtype:
            return ()
        return ("KeyCount", *(("Offset",) * self.offset), *(("Window",) * self.window))


HOST = Counts()  # gives the number of keys at each call


class ScoreOptions(NamedTuple):
    """The options of scores that a kernel is made for, and how it learns the number of keys."""

    softcap: bool = False
    alibi: bool = False
    sinks: bool = False
    counts: Counts = HOST


@dataclass(frozen=True)
class SplitKVSpec(Strided):
    """One split-KV kernel.

    rows: of a program, a power of two from 16 on. cols: keys of a tile. bounds: on either side of a term. tables: some
    bound is a step function. aligned: as of `KernelSpec`. several: terms are walked in a loop. split: several programs
    share the keys of a row, and leave what they found to a second kernel. combine: it is that second kernel.
    """

    dtype: str
    d: int
    dv: int
    rows: int
    cols: int
    bounds: int = 2
    tables: bool = False
    aligned: bool = True
    several: bool = False
    split: bool = True
    softcap: bool = False
    alibi: bool = False
    sinks: bool = False
    counts: Counts = HOST
    upcast: bool = False  # see KernelSpec
    combine: bool = False
    warps: int = 4
    stages: int = 3

    @property
    def name(self) -> str:
        """A short readable name; the content decides, not the name."""
        dims = f"{self.d}" if self.d == self.dv else f"{self.d}x{self.dv}"
        words = ("tables", "several", "split", "softcap", "alibi", "sinks")
        if self.combine:
            return f"combine_{self.dtype}_{dims}" + "_sinks" * self.sinks + "_any" * (not self.aligned)
        options = "".join(f"_{x}" for x in words if getattr(self, x)) + "_any" * (not self.aligned)
        if self.counts.dtype:
            told = ("per_batch", "ring", "offset", "window")
            options += f"_pages_of_{self.counts.page}" * bool(self.counts.page)
            options += f"_{self.counts.dtype}_count" + "".join(f"_{x}" for x in told if getattr(self.counts, x))
        return f"split_kv_{self.dtype}_{dims}_{self.rows}x{self.cols}{options}"

    @property
    def symbol(self) -> str:
        """What a profiler shows; several specs may share it."""
        return f"weft_decode_{'combine' if self.combine else 'split_kv'}_{self.sizes}"

    @property
    def reads(self) -> tuple[str, ...]:
        """Arguments that are pointers to what is read, in order."""
        sinks = ("Sinks",) * (self.sinks and (self.combine or not self.split))
        if self.combine:
            return ("Work", *sinks)
        paged = ("BlockTable",) * bool(self.counts.page)
        return ("Q", "K", "V", *sinks, *(("Slopes",) * self.alibi), "Tables", *self.counts.slots, *paged)

    @property
    def writes(self) -> tuple[str, ...]:
        """Arguments that are pointers to what is written, in order."""
        return ("Work",) if self.split and not self.combine else ("Out", "Lse")

    @property
    def strided(self) -> tuple[str, ...]:
        """Tensors whose strides are told, in elements or units."""
        return tuple(name for name in ("Q", "K", "V", "Out") if name in (*self.reads, *self.writes))

    @property
    def integers(self) -> tuple[str, ...]:
        """Arguments that are 32-bit integers."""
        return ("splits", "all_heads", "m") + (() if self.combine else ("members_at", "groups", "lanes", "span"))

    @property
    def arguments(self) -> tuple[str, ...]:
        """All arguments in order: what is read, scalars, what is written."""
        parts = ("batch", "head", "row") if self.aligned else ("batch", "head", "row", "dim")
        strides = ["sums", *(f"{x}_{part}" for x in self.strided for part in parts)]
        more = () if self.combine else ("scale", "softcap", *self.growing)
        return (*self.reads, *self.integers, *strides, *more, *self.writes)

    @property
    def growing(self) -> tuple[str, ...]:
        """Integers that grow, or where the device knows these the capacity of the cache, and how its pages lie."""
        if not self.counts.dtype:
            return GROWING
        return ("capacity", *(PAGING if self.counts.page else ()))


def split_kv_spec(plan: RowPlan, shape: RowShape, aligned: bool, options: ScoreOptions) -> SplitKVSpec:
    """The split-KV kernel of a plan."""
    problem = plan.problem
    step_functions = any(not isinstance(b, Stair) for r in plan.relations for b in r.lower + r.upper)
    return SplitKVSpec(
        problem.dtype, problem.d, problem.dv, shape.rows, shape.cols, bounds_of(plan), step_functions, aligned,
        several=any(len(s.relations) != 1 for s in plan.shares), split=shape.splits > 1,
        softcap=options.softcap, alibi=options.alibi, sinks=options.sinks, counts=options.counts,
        upcast=problem.dtype != "float32" and interpreted(), warps=shape.warps, stages=shape.stages,
    )  # fmt: skip


def specs_of(found: ByRows) -> tuple[SplitKVSpec, ...]:
    """The kernels of a forward by rows, as `configure.specs_of` has those of tiles."""
    problem = found.plan.problem
    aligned = all(size * DTYPES[problem.dtype] % 16 == 0 for size in (problem.d, problem.dv))
    spec = split_kv_spec(found.plan, found.shape, aligned, ScoreOptions())
    return (spec, combining(spec)) if spec.split else (spec,)


def combining(spec: SplitKVSpec) -> SplitKVSpec:
    """The kernel that combines the shares that another one leaves; it knows nothing of keys."""
    return SplitKVSpec(
        spec.dtype, spec.d, spec.dv, 16, 16, aligned=spec.aligned, sinks=spec.sinks, combine=True, warps=4, stages=1
    )


def bounds_of(plan: RowPlan) -> int:
    """Bounds on either side of every record: 2, or 4 where some term needs more."""
    most = max((max(len(r.lower), len(r.upper)) for r in plan.relations), default=0)
    return 2 if most <= 2 else 4
