"""KernelSpec -> the source of a kernel, from named fragments.

The side of a tile that stays is called rows ("mine"), the side that is walked columns ("theirs"): queries and keys in
`forward` and `dq`, keys and queries in `dkdv`. Fragments of one name do the same thing in all three.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from weft.kernels.gpu.arguments import FEW, ROUNDS, WALK, arguments, strided
from weft.kernels.gpu.descriptors import OF_FEW, READ, WRITTEN, box_names, walk_names
from weft.kernels.gpu.entry import indented, module
from weft.kernels.gpu.spec import KernelSpec
from weft.kernels.gpu.tables.pack import AXIS, HEAD, PART, axis_words
from weft.kernels.gpu.tile.entry import BODIES, written
from weft.kernels.triton.backward import KeyGradient, QueryGradient
from weft.kernels.triton.forward import Forward
from weft.kernels.triton.fragments import Fragments, within_length

GROUPS = {  # what a kernel whose groups specialise is made of
    "dkdv": "from weft.kernels.triton.groups import key_gradients\n\n",
    "forward": "from weft.kernels.triton.group_queries import attention\n\n",
    "short": "from weft.kernels.triton.group_queries import short_attention\n\n",
    "gradients": "from weft.kernels.triton.one_walk import gradients\n\n",
    "few_keys": "from weft.kernels.triton.few_keys import add_gradients\n\n",
    "few_sums": "from weft.kernels.triton.few_sums import join\n\n",
}
WORD, ASSIGNED = re.compile(r"[A-Za-z_]\w*"), re.compile(r"^\s*(\w+) = (?!.*;)")


def emit(spec: KernelSpec) -> str:
    """The source of a module with one kernel, `kernel`."""
    if spec.groups:
        about = f"{spec.name}\n\nEmitted by weft; {spec.groups} warp groups, {spec.stages} stages."
        helpers = GROUPS["short" if spec.short else spec.direction]
        return module(spec.symbol, about, helpers, arguments(spec), _in_groups(spec), "gluon")
    if spec.direction in BODIES:
        return written(spec)
    helpers = (
        "from weft.kernels.gpu.ops.bounds import (\n"
        "    in_three, is_out, lines, lower_table, positions, stairs, tanh, upper_table,\n"
        ")\n\n"
    )
    if spec.chained:
        helpers = f"from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait\n\n{helpers}"
    if spec.fast_log:
        helpers = f"from triton.language.extra.cuda import libdevice\n\n{helpers}"
    about = f"{spec.name}\n\nEmitted by weft; {spec.warps} warps, {spec.stages} stages."
    return module(spec.symbol, about, helpers, arguments(spec), _needed(_kernel(spec)))


def _in_groups(spec: KernelSpec) -> Iterator[str]:
    """A kernel whose warp groups specialise, of the parts of `weft.kernels.triton.groups`."""
    if spec.direction == "few_keys":
        yield f"sizes = {', '.join(FEW)}"
        yield "add_gradients("
        yield f"    ({', '.join(walk_names(OF_FEW))}), (Lse, Delta), Partial, sizes, Tables, scale,"
        yield ")"
        return
    if spec.direction == "gradients":
        yield "gradients("
        lse_gradient, delta = ("DLse" if spec.lse_gradient else "Lse"), ("Delta" if spec.with_delta else "Lse")
        yield f"    ({', '.join(walk_names(READ))}), (Lse, {lse_gradient}, {delta}),"
        yield f"    ({', '.join(walk_names(WRITTEN))}),"
        yield f"    ({', '.join(WALK[:-2])}), ({', '.join(WALK[-2:])}), scale,"
        yield f"    LSE_GRADIENT={spec.lse_gradient}, WITH_DELTA={spec.with_delta},"
        yield ")"
        return
    for name in strided(spec):
        yield f"{name.lower()} = {name}, {name}_batch, {name}_head, {name}_row"
    if spec.direction == "few_sums":
        yield "join(Partial, parts, (first, step, keys), (dk, dv), kv_heads, scale)"
        return
    yield f"tables = Tables, record, parts_at, items_at, heads_at, {', '.join(ROUNDS)}"
    if spec.direction == "forward":
        (box, *near), (*_, far_k, far_v) = box_names(1), box_names(spec.terms)
        far = far_k, far_v
        written = ", ".join(("out", "Lse", *((box,) * spec.boxed)))
        yield "short_attention(" if spec.short else "attention("
        yield f"    (q, (k, v), ({', '.join((*near, *far))})), ({written}),"
        yield f"    tables, (all_heads, my_length, scale, {'Sinks' if spec.sinks else 'Lse'}),"
        yield f"    WIDE={spec.groups}, STAGES={spec.stages}, TERMS={spec.terms}, SINKS={spec.sinks},"
    else:
        yield "key_gradients("
        yield "    (k, v), (q, dout, Stats), (dk, dv), tables, (all_heads, their_length, scale),"
        yield f"    WIDE={spec.groups}, STAGES={spec.stages}, CHAINED={spec.chained},"
    yield ")"


def _needed(lines: Iterable[str]) -> list[str]:
    """Without assignments to names that nobody reads: fragments name what some kernel wants of them. What comes first
    in a block stays.
    """
    kept = list(lines)
    while True:
        read = {word for line in kept for word in WORD.findall(ASSIGNED.sub("", line.partition("#")[0]))}
        begun = [True, *(line.endswith(":") for line in kept)]
        names = [None if first else ASSIGNED.match(line) for line, first in zip(kept, begun, strict=False)]
        rest = [line for line, name in zip(kept, names, strict=True) if name is None or name[1] in read]
        if len(rest) == len(kept):
            return kept
        kept = rest


# ---- the whole -----------------------------------------------------------------------------------------------------
def _kernel(spec: KernelSpec) -> Iterator[str]:
    if spec.aligned:
        yield f"# strides count in 16 bytes, {spec.unit} elements: rows are aligned"
    if spec.chained and not spec.of_keys:
        yield "gdc_launch_dependents()  # that of dK and dV may begin where this one leaves room"
    fragments = {"forward": Forward, "dq": QueryGradient, "dkdv": KeyGradient}[spec.direction](spec)
    yield from _where_am_i(spec)
    yield from _my_rows(spec)
    yield from fragments.load_mine()
    yield from _parts(spec, fragments)
    if isinstance(fragments, Forward) and fragments.bounds_again:
        yield "# bounds once more: kept from before the loop, they would have ptxas run its products one by one"
        yield from chain.from_iterable(_bounds(spec, 0, term) for term in range(spec.terms))
    yield from fragments.finish()
    if isinstance(fragments, Forward):
        yield from fragments.again(lambda: _parts(spec, fragments))


def _parts(spec: KernelSpec, fragments: Fragments) -> Iterator[str]:
    """The beginning, which waits for my rows, and the walk over all columns.

    Of a single line all is read before anything waits (benchmarks/notes/triton.md); a grid's bounds would take the
    registers of what is held.
    """
    if spec.rank == 1 and not spec.several:
        yield from _part(spec, fragments, fragments.start())
        return
    yield from fragments.start()
    if spec.rank == 0:
        yield from _walk_blocks(spec, fragments)
    elif spec.several:
        yield "for part in range(parts):"
        yield from indented(_part(spec, fragments))
    else:
        yield from _part(spec, fragments)


def _where_am_i(spec: KernelSpec) -> Iterator[str]:
    yield "# which tile of which head: head by head, or where some tiles far outlast the rest, these first"
    yield "item = first_item + tl.program_id(1)"
    yield f"member = Tables + heads_at + {HEAD} * (tl.program_id(0) + tl.program_id(2) * tl.num_programs(0))"
    yield "batch = tl.load(member).to(tl.int64)"
    yield "kv_head = tl.load(member + 1).to(tl.int64)"
    if spec.of_keys:
        yield "first_head, group = tl.load(member + 2), tl.load(member + 3)"
    else:
        yield "head = tl.load(member + 2)"
    if spec.packed:
        yield "if item >= tl.load(member + 5):"
        yield "    return"
        yield "record, parts = tl.load(member + 6), tl.load(member + 7)"
        yield "parts_at, items_at = tl.load(member + 8), tl.load(member + 9)"
        yield "Tables += tl.load(member + 4)"
    yield "mine = Tables + items_at + item * record"


def _my_rows(spec: KernelSpec) -> Iterator[str]:
    yield "# my rows: coordinates i_a on every axis, and tokens; where a tile ends early its last row, again and again"
    yield f"r = tl.arange(0, {spec.rows})"
    if spec.rank == 0:
        yield f"first_r = tl.load(mine) * {spec.rows}"
        yield from within_length()
        within = "(token_r >= tl.load(Tables + 5)) & (token_r < tl.load(Tables + 6))"
        yield f"within = {within}  # no row beyond sees a key"
        return
    yield "valid = r >= 0"
    yield "rest = r"
    for a in reversed(range(spec.rank)):
        box = f"tl.load(Tables + {2 + 3 * a})"
        if a:
            yield f"r_{a} = rest & ((1 << {box}) - 1)"
            yield f"rest = rest >> {box}"
        else:
            yield f"r_{a} = rest"
        yield f"rows_{a} = tl.load(mine + {2 * a + 1})"
        yield f"valid &= r_{a} < rows_{a}"
        yield f"r_{a} = tl.minimum(r_{a}, rows_{a} - 1)"
        yield f"start_{a} = tl.load(mine + {2 * a})"
        yield f"r_{a} = r_{a} * tl.load(Tables + {3 + 3 * a})"
        yield f"i_{a} = start_{a} + r_{a}"
    first, near = "start_0", "r_0"
    for a in range(1, spec.rank):
        length = f"tl.load(Tables + {4 + 3 * a})"
        first, near = f"({first}) * {length} + start_{a}", f"({near}) * {length} + r_{a}"
    if spec.listed and spec.rank == 1:
        yield "if tl.load(Tables + 1) != 0:  # listed queries"
        yield "    i_0 = tl.load(Tables + tl.load(Tables + 1) + i_0)"
        first, near = "0", "i_0"
    yield f"first_r = tl.load(Tables) + {first}"
    yield f"near_r = {near}"
    yield "token_r = first_r + near_r  # (rows,)"


def _part(spec: KernelSpec, fragments: Fragments, start: Iterable[str] = ()) -> Iterator[str]:
    """One part: the columns of one box, bounds of my rows, and the walk over all boxes. start: before it."""
    R = spec.rank
    part = " + part" if spec.several else ""
    yield f"here = Tables + parts_at{part and f'{part} * {PART + axis_words(R) * R}'}"
    yield f"run = mine + {2 * R}{part and f'{part} * {4 * R}'}"
    yield f"c = tl.arange(0, {spec.cols})"
    yield "rest_c = c"
    for a in reversed(range(R)):
        yield from _axis(spec, a)
    for term in range(1, spec.terms):
        yield from _further_term(spec, term)
    if spec.more:
        yield from _more_terms()
    base, inside = "first_0", "c_0 * step_0"
    for a in range(1, R):
        base = f"({base}) * length_{a} + first_{a}"
        inside = f"({inside}) * length_{a} + c_{a} * step_{a}"
    yield f"base = tl.load(here) + {base}  # the first token"
    yield f"token_c = {inside}  # (cols,) tokens of a box"
    yield from start
    if R > 1:
        yield from fragments.places()
    if spec.listed:
        yield "keys_at, rows_out, cols_out = tl.load(here + 1), tl.load(here + 2), tl.load(here + 3)"
        yield "row_is_out = is_out(Tables, rows_out, token_r)  # (rows,)"
    for a in reversed(range(R)):  # how far a box is from the next one along each axis, in tokens
        scale = "".join(f" * length_{b}" for b in range(a + 1, R))
        yield f"pace_{a} = (step_{a} << log_{a}){scale}" if R > 1 else f"pace_0 = step_0 * {spec.cols}"
    if spec.more:
        yield f"more -= {fragments.before_more} * pace_0"
    if spec.few_edges:
        yield from _edges_if_any(spec, fragments)
        return
    yield from fragments.look()
    yield from fragments.per_part()
    yield from fragments.per_head(_walk(spec, fragments))


def _more_terms() -> Iterator[str]:
    """The run of full tiles of other terms, where the launch has one, and its first token."""
    words = PART + axis_words(1)
    there = "mask=parts > 1, other=0"
    yield f"more_0 = tl.load(run + 7, {there})  # full tiles of another term"
    yield f"more = tl.load(here + {words}, {there}) + tl.load(run + 4, {there})"


def _edges_if_any(spec: KernelSpec, fragments: Fragments) -> Iterator[str]:
    """Bounds, and a walk over edges, only where a tile of the part has one (benchmarks/notes/triton.md)."""
    yield from fragments.per_part()
    yield "low_0, high_0 = tl.zeros_like(r), tl.zeros_like(r)"
    yield "if boxes_0 > full_0 - left_0:  # some tile has an edge"
    yield from indented(_bounds(spec, 0))
    if spec.apart:
        yield from indented(fragments.per_head(_walk_edges(spec, fragments)))
    yield from fragments.look()
    yield from fragments.per_head((_walk_full if spec.apart else _walk)(spec, fragments))


def _axis(spec: KernelSpec, a: int, term: int = 0) -> Iterator[str]:
    """The run of columns along one axis, and the bounds of my rows on it; of a line also those of further terms."""
    R, at, n = spec.rank, PART + axis_words(spec.rank) * a, term or a
    here, run = (f"{x}_{term}" if term else x for x in ("here", "run"))
    yield f"first_{n} = tl.load({run} + {4 * a})"
    yield f"count_{n} = tl.load({run} + {4 * a + 1})"
    if term and spec.packed:
        yield f"count_{n} = tl.where(parts > {term}, count_{n}, 0)"
    yield f"step_{n} = tl.load({here} + {at})"
    yield f"length_{n} = tl.load({here} + {at + 2})"
    if R > 1:
        yield f"log_{a} = tl.load(here + {at + 1})"
        yield f"c_{a} = rest_c & ((1 << log_{a}) - 1)" if a else f"c_{a} = rest_c"
        if a:
            yield f"rest_c = rest_c >> log_{a}"
        yield f"boxes_{a} = (count_{a} + (1 << log_{a}) - 1) >> log_{a}"
    else:
        yield f"left_{n} = tl.load({run} + 2)"
        yield f"full_{n} = left_{n} + tl.load({run} + 3)"
        yield f"boxes_{n} = (count_{n} + {spec.cols - 1}) // {spec.cols}"
        if not term:
            yield "c_0 = c"
    if not spec.few_edges:
        yield from _bounds(spec, a, term)


def _further_term(spec: KernelSpec, term: int) -> Iterator[str]:
    """A term that is walked after the first; of launches side by side some may have fewer, and read the first's."""
    for name, words in (("here", (PART + axis_words(1)) * term), ("run", 4 * term)):
        yield f"{name}_{term} = {name} + {f'tl.where(parts > {term}, {words}, 0)' if spec.packed else words}"
    yield from _axis(spec, 0, term)
    yield f"base_{term} = tl.load(here_{term}) + first_{term}"


def _bounds(spec: KernelSpec, a: int, term: int = 0) -> Iterator[str]:
    """The bounds of my rows along one axis, as positions in the run."""
    R, at, n = spec.rank, PART + axis_words(spec.rank) * a, term or a
    here = f"here_{term}" if term else "here"
    if R > 1:
        yield f"bounds = Tables + tl.load(here + {at + 3}) + 2 * i_{a}"
        yield "low, high = tl.load(bounds), tl.load(bounds + 1)"
    elif spec.formula:
        yield f"low, high = {'lines' if spec.lines else 'stairs'}({here} + {at + AXIS}, i_0, length_{n})"
    else:
        yield f"low = lower_table(Tables, {here} + {at + AXIS}, i_0, item)"
        yield f"high = upper_table(Tables, {here} + {at + AXIS + 2}, i_0, item, length_{n})"
    if spec.listed and R == 1:
        yield "low_0, high_0 = low, high  # (rows,) coordinates"
    else:
        yield f"reciprocal, digits = tl.load({here} + {at + 4}), tl.load({here} + {at + 5})  # of the step"
        yield f"low_{n} = positions(low, first_{n}, step_{n}, reciprocal, digits)  # (rows,)"
        yield f"high_{n} = positions(high, first_{n}, step_{n}, reciprocal, digits)"


def _walk(spec: KernelSpec, fragments: Fragments) -> Iterator[str]:
    if spec.rank > 1:
        yield from (f"j_{a} = 0" for a in range(spec.rank))
        yield "for box in range(" + " * ".join(f"boxes_{a}" for a in range(spec.rank)) + "):"
        yield from indented(fragments.step())
        yield from indented(_carry(spec.rank))
    elif spec.apart:
        yield from _walk_edges(spec, fragments)
        yield from _walk_full(spec, fragments)
    elif spec.terms > 1:
        yield f"for j in range({' + '.join(f'boxes_{a}' for a in range(spec.terms))}):"
        yield from indented(_which_term(spec.terms))
        yield from indented(fragments.step())
    else:
        yield f"for j_0 in range(boxes_0{' + more_0' * spec.more}):"
        yield from indented(fragments.step())


def _which_term(terms: int) -> Iterator[str]:
    """The numbers of the term that tile j is of, which is the j_0-th of it."""
    places = ["j"]
    for a in range(1, terms):
        before = " + ".join(f"boxes_{b}" for b in range(a))
        yield f"of_{a} = j >= {before}  # of term {a}, or of one after it"
        places.append(f"j - ({before})" if a > 1 else f"j - {before}")

    def chosen(each: Sequence[str]) -> str:
        text = each[0]
        for a in range(1, terms):
            text = f"tl.where(of_{a}, {each[a]}, {text})"
        return text

    yield f"j_0 = {chosen(places)}"
    for name in ("count", "step", "left", "full", "low", "high"):
        yield f"{name}_j = {chosen([f'{name}_{a}' for a in range(terms)])}"
    yield f"base_j = {chosen(['base', *(f'base_{a}' for a in range(1, terms))])}"


def _walk_edges(spec: KernelSpec, fragments: Fragments) -> Iterator[str]:
    yield "for j in range(boxes_0 - full_0 + left_0):  # tiles with an edge"
    yield "    j_0 = tl.where(j < left_0, j, j + full_0 - left_0)"
    yield from indented(fragments.step("edge"))


def _walk_full(spec: KernelSpec, fragments: Fragments) -> Iterator[str]:
    yield f"for j_0 in range(left_0, full_0{' + more_0' * spec.more}):  # full tiles"
    yield from indented(fragments.step("full"))


def _carry(rank: int) -> Iterator[str]:
    yield "# the next box, last axis first"
    yield f"j_{rank - 1} += 1"
    for a in reversed(range(1, rank)):
        yield f"over = j_{a} == boxes_{a}"
        yield f"j_{a} = tl.where(over, 0, j_{a})"
        yield f"j_{a - 1} += tl.where(over, 1, 0)"


def _walk_blocks(spec: KernelSpec, fragments: Fragments) -> Iterator[str]:
    yield "columns, places, bits = Tables + tl.load(Tables), Tables + tl.load(Tables + 1), Tables + tl.load(Tables + 2)"
    yield "begin, end = tl.load(Tables + 3), tl.load(Tables + 4)  # of seen columns"
    yield f"c = tl.arange(0, {spec.cols})"
    yield "token_c = c"

    def walk() -> Iterator[str]:
        yield "for block in range(tl.load(mine + 1), tl.load(mine + 2)):"
        yield from indented(fragments.step())

    yield from fragments.per_part()
    yield from fragments.per_head(walk())
