"""What split-KV kernels are made for, and which of them a plan takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from weft.kernels.gpu.configure import overlaps
from weft.kernels.gpu.spec import Strided
from weft.pattern.bounds import Stair
from weft.pattern.relation import Relation
from weft.planning.families.split_kv import ByRows, RowShape
from weft.planning.heads import Heads
from weft.planning.problem import DTYPES
from weft.planning.rowwise import RowPlan
from weft.settings import interpreted

# 32-bit integers that grow step by step: from a query to the row of a term, and to the key beside it (for distances).
# Then the number of keys.
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


FEWEST, MOST_COMBINED = 16, 8192  # shares, and numbers of them, that a program takes together
HOST = Counts()  # gives the number of keys at each call


class ScoreOptions(NamedTuple):
    """The options of scores that a kernel is made for, and how it learns the number of keys. chained: a launch may
    begin while the one before ends.
    """

    softcap: bool = False
    alibi: bool = False
    sinks: bool = False
    counts: Counts = HOST
    chained: bool = False


@dataclass(frozen=True)
class SplitKVSpec(Strided):
    """One split-KV kernel.

    rows: of a program, a power of two from 16 on. cols: keys of a tile. bounds: on either side of a term. tables: some
    bound is a step function. aligned: as of `KernelSpec`. several: terms are walked in a loop. plain: no term has
    residue classes, and staircases have steps one index wide. group: query heads of a key/value head where all heads
    have the same `terms`, and programs `heads` of them; 0 where a table says it. split: several programs share the keys
    of a row, and leave what they found to a second kernel, which `chained` begins early. combine: it is that second
    kernel; rows: shares that it takes together, once: they are all.
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
    plain: bool = False
    group: int = 0
    heads: int = 0
    terms: int = 0
    split: bool = True
    once: bool = False
    chained: bool = False
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
        words: Any = ("tables", "several", "plain", "split", "softcap", "alibi", "sinks")
        if self.combine:
            words = (("_once", self.once), ("_sinks", self.sinks), ("_any", not self.aligned))
            return f"combine_{self.dtype}_{dims}_{self.rows}" + "".join(word for word, there in words if there)
        options = "".join(f"_{x}" for x in words if getattr(self, x)) + "_any" * (not self.aligned)
        options += f"_{self.heads}_of_{self.group}" * bool(self.group)
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
    alike = problem.group if heads_are_alike(plan, shape.heads) else 0
    return SplitKVSpec(
        problem.dtype, problem.d, problem.dv, shape.rows, shape.cols, bounds_of(plan), step_functions, aligned,
        several=any(len(s.relations) != 1 for s in plan.shares), plain=is_plain(plan), group=alike,
        heads=shape.heads if alike else 0, terms=len(plan.relations) if alike else 0,
        split=shape.splits > 1, chained=shape.splits > 1 and options.chained,
        softcap=options.softcap, alibi=options.alibi, sinks=options.sinks, counts=options.counts,
        upcast=problem.dtype != "float32" and interpreted(), warps=shape.warps, stages=shape.stages,
    )  # fmt: skip


def specs_of(found: ByRows) -> tuple[SplitKVSpec, ...]:
    """The kernels of a forward by rows, as `configure.specs_of` has those of tiles."""
    problem = found.plan.problem
    aligned = all(size * DTYPES[problem.dtype] % 16 == 0 for size in (problem.d, problem.dv))
    spec = split_kv_spec(found.plan, found.shape, aligned, ScoreOptions(chained=overlaps(found.gpu)))
    return (spec, combining(spec, found.shape.splits)) if spec.split else (spec,)


def combining(spec: SplitKVSpec, splits: int) -> SplitKVSpec:
    """The kernel that combines so many shares that another one leaves; it knows nothing of keys."""
    room = max(FEWEST, MOST_COMBINED >> (spec.dv - 1).bit_length())
    together = min(room, max(FEWEST, 1 << (splits - 1).bit_length()))
    return SplitKVSpec(
        spec.dtype, spec.d, spec.dv, together, 16, aligned=spec.aligned, once=splits <= together,
        chained=spec.chained, sinks=spec.sinks, combine=True, warps=4, stages=1,
    )  # fmt: skip


def bounds_of(plan: RowPlan) -> int:
    """Bounds on either side of every record: 1, 2 or 4, as the term with most of them needs."""
    most = max((max(len(r.lower), len(r.upper)) for r in plan.relations), default=0)
    return 1 << max(0, most - 1).bit_length()


def is_plain(plan: RowPlan) -> bool:
    """Whether the keys of all rows are without gaps, and bounds need no division."""
    return all(_is_plain(relation) for relation in plan.relations)


def _is_plain(relation: Relation) -> bool:
    steps = relation.keys.step, relation.diagonal.step, relation.rows.step
    bounds = relation.lower + relation.upper
    return steps == (1, 1, 1) and all(isinstance(b, Stair) and (b.run == 1 or b.is_constant) for b in bounds)


def heads_are_alike(plan: RowPlan, together: int) -> bool:
    """Whether all heads have the same terms, as many heads are in each program, and the terms come first in the table.
    These come first where no step function has a list before them.
    """
    problem = plan.problem
    everyone = Heads((0, problem.batch), (0, problem.kv_heads), (0, problem.group))
    alike = len(plan.shares) == 1 and plan.shares[0].heads == (everyone,) and problem.group % together == 0
    return alike and all(isinstance(b, Stair) for r in plan.relations for b in r.lower + r.upper)
