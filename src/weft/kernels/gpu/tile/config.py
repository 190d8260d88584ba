"""KernelSpec -> Config: what the fragments of a tile kernel branch on while they are compiled.

An entry builds its Config from literals, so the text of the entry says all of it. Fragments read its fields, and a
branch that a field decides is not compiled. A choice that was measured is a property here, beside its reason.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from weft.kernels.gpu.score.fragment import Fragment, fragment
from weft.kernels.gpu.score.spec import OF_ROWS, PAIRS
from weft.kernels.gpu.spec import KernelSpec
from weft.kernels.gpu.tables.pack import axis_words
from weft.planning.families.tile import REGISTERS_OF_FIVE
from weft.planning.tiling import chunks

Chunks = tuple[tuple[int, int, int], ...]  # (first column, width, columns that exist) of a head dimension's chunks


class Config(NamedTuple):
    """What one kernel is compiled for; see `KernelSpec` for fields of the same name.

    d, dv: chunks of the head dimensions. rows, cols: of a tile. unit: elements that strides count in. precision: of
    products of float32, None for other types. single: the dtype is float32. scored: score functions are there: `score`
    and `through`, as `weft.kernels.gpu.score.fragment` writes them. adds: they only add to scores, so that products
    begin with it. penalty_first: products begin with penalties of a grid. along: some table is read along k - q.
    ahead: it is read a tile ahead. sloped: their derivative is not 1. entries, summed, paired, places: see
    `weft.kernels.gpu.tile.entries`.
    """

    direction: str
    d: Chunks
    dv: Chunks
    rows: int
    cols: int = 0
    cols_log: int = 0
    rank: int = 1
    aligned: bool = False
    unit: int = 1
    precision: str | None = None
    single: bool = False
    upcast: bool = False
    linear: bool = False
    folded: bool = False
    stats32: bool = False
    wide_rows: bool = False
    near_rows: bool = False
    leaves_delta: bool = False
    lse_gradient: bool = False
    chained: bool = False
    of_keys: bool = False
    packed: bool = False
    several: bool = False
    listed: bool = False
    ordered: bool = False
    gathered: bool = False
    formula: bool = True
    lines: bool = False
    terms: int = 1
    term_numbers: tuple[int, ...] = ()
    axes_last_first: tuple[int, ...] = ()
    axis_words: int = 0
    few_edges: bool = False
    more: bool = False
    apart: bool = False
    whole: bool = False
    clamps: bool = False
    by_side: bool = False
    held: bool = False
    hold_q: bool = False
    hold_dout: bool = False
    softcap: bool = False
    alibi: bool = False
    accumulate: bool = False
    split: bool = False
    leaves_last: bool = False
    no_maximum: bool = False
    partial: bool = False
    rounds: bool = False
    sinks: bool = False
    fast_log: bool = False
    sums_row: int = 0
    makes: str = "both"
    grouped: bool = False
    with_dq: bool = False
    reads_seen: bool = False
    products_first: bool = False
    hold_k: bool = False
    leaves_shared: bool = False
    adds_shared: bool = False
    sums_dv: int = 0
    paged: int = 0
    scored: bool = False
    adds: bool = False
    penalty_first: bool = False
    along: bool = False
    ahead: bool = False
    sloped: bool = False
    score: Any = None
    through: Any = None
    entries: tuple[int, ...] = ()
    summed: int = 0
    paired: int = 0
    places: Any = None
    dropout: bool = False
    renumbered: bool = False
    neighbours: bool = False
    direct: bool = False


class Named(str):
    """The name of a function in the text of an entry."""

    def __repr__(self) -> str:
        return str(self)


def config_of(spec: KernelSpec) -> Config:
    """The configuration of a kernel of this family."""
    own = {name: getattr(spec, name) for name in Config._fields if hasattr(spec, name)}
    own |= {
        "d": chunks(spec.d), "dv": chunks(spec.dv), "axis_words": axis_words(spec.rank),
        "term_numbers": tuple(range(spec.terms)), "axes_last_first": tuple(reversed(range(spec.rank))),
        "single": spec.dtype == "float32", "precision": _precision(spec),
        "wide_rows": _wide_rows(spec), "near_rows": _near_rows(spec),
        "clamps": _clamps(spec), "by_side": _by_side(spec),
        "hold_q": "q" in spec.factors, "hold_dout": "do" in spec.factors, "hold_k": "k" in spec.factors,
        "rounds": _rounds(spec),
        "sums_row": spec.dv if spec.direction == "forward" and spec.accumulate else 0,
        "cols_log": spec.cols.bit_length() - 1 if spec.rules is not None and spec.rules.entries else 0,
        "sums_dv": spec.d if spec.leaves_shared or spec.adds_shared else 0,
        "leaves_last": _leaves_last(spec), "products_first": _products_first(spec),
        "penalty_first": spec.rank > 1 and spec.linear and spec.rules is None,
        "reads_seen": spec.of_keys and spec.with_dq and spec.rank > 0,
    }  # fmt: skip
    found = fragment_of(spec)
    if found is not None:
        own |= {
            "scored": True,
            "sloped": found.sloped,
            "score": Named("pair_score"),
            "along": _along(spec),
            "ahead": _ahead(spec),
        }
        own |= {"through": Named("pair_through")} if spec.direction != "forward" else {}
        own |= _entries(spec, found)
    return Config(**own)


def _along(spec: KernelSpec) -> bool:
    """Whether score functions read some table along k - q."""
    return spec.rules is not None and spec.rules.along


def _ahead(spec: KernelSpec) -> bool:
    """Whether a forward reads what products begin with a tile ahead. At wide heads two programs run on a processor, and
    products waited for numbers that lie in L2. Narrow ones have more programs, and no registers left.
    """
    walks = spec.rank == 1 and spec.terms == 1 and not (spec.several or spec.apart or spec.gathered)
    read = spec.adds and spec.direct and _along(spec)
    return spec.direction == "forward" and walks and read and not spec.narrow


def fragment_of(spec: KernelSpec) -> Fragment | None:
    """The functions of pairs that a kernel calls; None for none."""
    if spec.rules is None or spec.direction == "delta":
        return None
    read = "tl.load" if not spec.direct else "read_ahead" if _ahead(spec) else "read_now"
    return fragment(spec.rules, spec.direction != "forward", spec.adds, read)


def _entries(spec: KernelSpec, found: Fragment) -> dict[str, Any]:
    """What a kernel does with gradients of tables. summed: so many reads are of rows; paired: so many come before those
    by pairs.
    """
    assert spec.rules is not None
    kinds = () if spec.makes == "dv" else tuple(one.kind for one in spec.rules.entries)
    places = {"places": Named("pair_places")} if found.paired else {}
    return {"entries": kinds, "summed": kinds.count(OF_ROWS), "paired": len(kinds) - kinds.count(PAIRS), **places}


def literal(config: Any) -> list[str]:
    """The lines of an expression that makes a configuration; fields at their defaults are left out."""
    defaults = config._field_defaults
    said = [f"{name}={value!r}," for name, value in config._asdict().items() if value != defaults.get(name)]
    lines, line = [], ""
    for one in said:
        if len(line) + len(one) > 100:
            lines.append(line.rstrip())
            line = ""
        line += one + " "
    return ["Config(", *(f"    {x}" for x in (*lines, line.rstrip())), ")"]


def _precision(spec: KernelSpec) -> str | None:
    if spec.dtype != "float32":
        return None
    return "tf32" if spec.tf32 else "ieee"


def _wide_rows(spec: KernelSpec) -> bool:
    """Whether the stride of rows is made 64 bits wide before a tile's first token is multiplied by it.

    Forwards, dK and dV on lines then take fewer instructions a tile; dQ and grids take more, or spill
    (benchmarks/notes/triton.md, T23).
    """
    return spec.aligned and spec.rank < 2 and spec.direction != "dq" and not spec.with_dq


def _near_rows(spec: KernelSpec) -> bool:
    """Whether a tile's rows are counted in 32 bits from its first one: on lines, where it was not slower."""
    return spec.aligned and spec.rank == 1 and not spec.gathered and spec.direction != "delta"


def _clamps(spec: KernelSpec) -> bool:
    """Whether columns beyond the last one are read as the last one instead of not at all. No row sees either.

    Loads with a mask for each row cost a quarter of the instructions of a tile with an edge, 64 columns wide. dK and
    dV, whose tiles are half as wide, rather need the registers.
    """
    return spec.rank == 1 and not spec.listed and not spec.of_keys


def _by_side(spec: KernelSpec) -> bool:
    """Whether a tile beside full ones is masked only by the side that cuts it. So it is in loops over several terms,
    and in the forward at narrow heads. Elsewhere a second branch costs more than it saves (benchmarks/notes/triton.md,
    T18).
    """
    forward = spec.direction == "forward" and spec.rank == 1 and spec.narrow and not spec.listed
    return spec.terms > 1 or forward


def _leaves_last(spec: KernelSpec) -> bool:
    """Whether dQ leaves what dK and dV take after the walk, before which it would keep the first keys waiting.

    At narrow heads: there it costs no registers that the walk needs (benchmarks/notes/triton.md, T41).
    """
    short = spec.rank == 1 and spec.narrow and not spec.several
    return spec.direction == "dq" and short and spec.registers != REGISTERS_OF_FIVE


def _rounds(spec: KernelSpec) -> bool:
    """Whether the rounding of large weights counts in what a forward divides by (docs/decisions/0015). Where a maximum
    is subtracted the largest weight is 1, which no rounding changes.
    """
    narrow = spec.dtype == "bfloat16" and not (spec.upcast or spec.dropout)
    return spec.direction == "forward" and spec.no_maximum and narrow


def _products_first(spec: KernelSpec) -> bool:
    """Whether dK and dV make both products of a tile first, and mask them together: where registers suffice."""
    summed = spec.rules is not None and bool(spec.rules.entries)
    crowded = spec.rank == 0 or spec.with_dq or spec.listed or (spec.several and spec.grouped) or summed
    whole = spec.of_keys and spec.makes == "both"
    return whole and spec.folded and max(spec.d, spec.dv) <= 128 and not crowded
