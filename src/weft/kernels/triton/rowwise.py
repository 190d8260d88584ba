"""RowSpec -> the source of a row-wise kernel: a program holds a few rows, and walks their live keys and no others.

The rows of a program are the query heads of one key/value head, for one token or several whose keys lie in the same
residue classes: they share every key that is read. A program takes an equal share of the tiles of keys of all terms;
where there are several shares, a second kernel (`_merge`) joins them by lse.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import lru_cache

import numpy as np

from weft.kernels.gpu.compile.source import POINTERS, Source
from weft.kernels.gpu.constants import LN2, LOG2E
from weft.kernels.gpu.entry import module
from weft.kernels.gpu.tables.pack import NO_LOWER, NO_UPPER, Writer
from weft.kernels.triton.row_spec import GROWING, RowSpec, bounds_of
from weft.pattern.bounds import Bound, Ints, Stair
from weft.pattern.relation import Relation
from weft.planning.heads import Heads
from weft.planning.rowwise import RowPlan
from weft.planning.tiling import chunks
from weft.planning.tiling.gpu import FAR

MEMBER = 6  # integers of a member: batch row, key/value head, first query head, query heads, terms, where they are
BLOCK = 16  # splits that the merge takes together
WIDE = ("Work", "Lse", "Sinks", "Slopes")  # always float32
ALIGNED = ("Work", "Lse", "Tables")  # weft's own; sinks and slopes are a user's
COUNTED = {"int32": "*i32", "int64": "*i64"}


@lru_cache(maxsize=256)
def source_of(spec: RowSpec) -> Source:
    """The emitted source with the types of its arguments; integers have a declared width and are never specialised."""
    types = {name: _type_of(name, spec) for name in spec.arguments}
    aligned = tuple(
        i for i, name in enumerate(types)
        if name in ALIGNED or (spec.aligned and name in ("Q", "K", "V", "Out"))
    )  # fmt: skip
    return Source(spec.name, emit(spec), tuple(types.items()), aligned, spec.warps, spec.stages,
                  spec=json.dumps(asdict(spec), indent=1))  # fmt: skip


def _type_of(name: str, spec: RowSpec) -> str:
    if name == "Tables":
        return "*i32"
    if name in spec.counts.slots:
        return COUNTED[spec.counts.dtype]
    if name in (*spec.reads, *spec.writes):
        return "*fp32" if name in WIDE else POINTERS[spec.dtype]
    if name in ("scale", "softcap"):
        return "fp32"
    return "i32" if name in (*spec.integers, *GROWING, "capacity") else "i64"


def emit(spec: RowSpec) -> str:
    """The source of a module with one kernel, `kernel`."""
    helpers = "" if spec.merge else (
        "from weft.kernels.gpu.ops.bounds import tanh\nfrom weft.kernels.triton.row_device import row_run, share\n\n"
    )  # fmt: skip
    about = f"{spec.name}\n\nEmitted by weft; {spec.warps} warps, {spec.stages} stages."
    body = _merge(spec) if spec.merge else _rows(spec)
    return module(spec.symbol, about, helpers, spec.arguments, body)


# ---- one share of a few rows -----------------------------------------------------------------------------------------
def _rows(spec: RowSpec) -> Iterator[str]:
    yield from _in_elements(spec)
    yield from _where_am_i(spec)
    yield from _columns(spec)
    yield "q_at = Q + batch * Q_batch + head.to(tl.int64) * Q_head + row.to(tl.int64) * Q_row"
    yield from _load(spec, "q", "q_at", "Q", "d", "valid")
    if spec.alibi:
        yield f"slope = tl.load(Slopes + head, mask=valid, other=0.0) * {LOG2E}"
    for n, (_, width, _) in enumerate(chunks(spec.dv)):
        yield f"acc_{n} = tl.zeros(({spec.rows}, {width}), tl.float32)"
    yield f'largest = tl.full(({spec.rows},), float("-inf"), tl.float32)  # of the scores, in units of log2'
    yield f"total = tl.zeros(({spec.rows},), tl.float32)"
    yield "k_at = K + batch * K_batch + kv_head * K_head"
    yield "v_at = V + batch * V_batch + kv_head * V_head"
    yield f"c = tl.arange(0, {spec.cols})"
    if spec.several:
        yield from _shared_terms(spec)
    else:
        yield "low, high, first, step, count = " + _run_of(spec, "terms")
        yield f"tiles = (count + {spec.cols - 1}) // {spec.cols}"
        yield "begin, end = share(tiles, split, splits)"
        yield "for j in range(end - begin):"
        yield from _indented(_tile(spec))
    yield from _finish(spec)


def _where_am_i(spec: RowSpec) -> Iterator[str]:
    yield "# which rows: row_0, row_0 + lanes, ... of the query heads of one key/value head; and which share"
    yield "place, split = tl.program_id(0), tl.program_id(1)"
    yield f"member = Tables + members_at + {MEMBER} * (place // groups)"
    yield "batch, kv_head = tl.load(member).to(tl.int64), tl.load(member + 1).to(tl.int64)"
    yield "first_head, heads = tl.load(member + 2), tl.load(member + 3)"
    yield "count_of_terms, terms = tl.load(member + 4), Tables + tl.load(member + 5)"
    yield "place = place % groups"
    yield "row_0 = place % lanes + place // lanes * (lanes * span)"
    yield f"r = tl.arange(0, {spec.rows})"
    yield "row, head = row_0 + lanes * (r // heads), first_head + r % heads  # (rows,)"
    yield "valid = (r < span * heads) & (row < m)"
    if spec.counts.dtype:
        yield from _counted(spec)
    yield "i_0, i = row_0 + shift, row + shift  # as terms count rows"
    if spec.counts.dtype:
        yield "i_0 += tl.where(i_0 < 0, lanes * m, 0)  # a row of the same residue classes that exists"
    yield from _least_key(spec)


def _counted(spec: RowSpec) -> Iterator[str]:
    """The number of keys, and where queries stand, as device slots say; a query before the first token sees no key."""
    at = " + batch" * spec.counts.per_batch
    yield f"length = tl.load(KeyCount{at}).to(tl.int32)"
    yield "shift = " + (f"tl.load(Offset{at}).to(tl.int32)" if spec.counts.offset else "length - m")
    yield "beside = shift"
    if not spec.counts.ring:
        yield "length = tl.minimum(length, capacity)  # what lies beyond the cache is never read"
    yield "sees = valid & (row + shift >= 0)  # others are written too: they see nothing"


def _least_key(spec: RowSpec) -> Iterator[str]:
    """The first key that rows may see, whatever their terms say."""
    if not (spec.counts.ring or spec.counts.window):
        return
    yield "least = tl.zeros_like(i)"
    if spec.counts.ring:
        yield "least = tl.maximum(least, length - capacity)  # older ones are overwritten"
    if spec.counts.window:
        at = " + batch" * spec.counts.per_batch
        yield f"least = tl.maximum(least, i + 1 - tl.load(Window{at}).to(tl.int32))"


def _in_elements(spec: RowSpec) -> Iterator[str]:
    """Strides as elements, where they are told in units of so many."""
    if spec.unit > 1:
        yield f"# strides come in units of 16 bytes, {spec.unit} elements: rows are aligned"
        for x in spec.strided:
            yield "; ".join(f"{x}_{part} = {x}_{part} * {spec.unit}" for part in ("batch", "head", "row"))


def _columns(spec: RowSpec) -> Iterator[str]:
    """Index vectors of the chunks of both head dimensions, and which columns of a padded one exist, (1, d)."""
    for name, dims in (("d", chunks(spec.d)), ("dv", chunks(spec.dv))):
        if spec.merge and name == "d":
            continue
        for n, (first, width, live) in enumerate(dims):
            yield f"{name}_{n} = {first} + tl.arange(0, {width})"
            if live < width:
                yield f"{name}_live_{n} = {name}_{n} < {first + live}"


def _load(spec: RowSpec, target: str, at: str, tensor: str, kind: str, mask: str = "") -> Iterator[str]:
    """(rows of `at`, d) in chunks; dead columns of a padded chunk and masked rows read as 0."""
    dim = "" if spec.aligned else f" * {tensor}_dim"
    cast = ".to(tl.float32)" if spec.upcast else ""
    for n, (_, width, live) in enumerate(chunks(spec.d if kind == "d" else spec.dv)):
        inside = f"{kind}_live_{n}[None, :]" if live < width else ""
        where = " & ".join(x for x in (f"{mask}[:, None]" if mask else "", inside) if x)
        option = f", mask={where}, other=0.0" if where else ""
        yield f"{target}_{n} = tl.load({at}[:, None] + {kind}_{n}[None, :]{dim}{option}){cast}  # {width}"


def _run_of(spec: RowSpec, record: str) -> str:
    least = "least" if spec.counts.ring or spec.counts.window else "tl.zeros_like(i)"
    sees = "sees" if spec.counts.dtype else "valid"
    return f"row_run(Tables, {record}, i, {sees}, i_0, ({least}, length), {spec.bounds}, {spec.tables})"


def _shared_terms(spec: RowSpec) -> Iterator[str]:
    """Every term in turn, of which the tiles in [begin, end) of all terms are mine.

    One integer goes from term to term. Two that grow alike (begin - tiles, end - tiles) were right in Triton's first
    representation and not in its second, where one of them no longer changed (3.6.0, 3.7.1): terms were counted twice.
    """
    record = f"terms + part * {term_words(spec.bounds)}"
    yield "all_tiles = 0"
    yield "for part in range(count_of_terms):"
    yield f"    low, high, first, step, count = {_run_of(spec, record)}"
    yield f"    all_tiles += (count + {spec.cols - 1}) // {spec.cols}"
    yield "begin, end = share(all_tiles, split, splits)"
    yield "before = 0  # tiles of the terms before"
    yield "for part in range(count_of_terms):"
    yield f"    low, high, first, step, count = {_run_of(spec, record)}"
    yield f"    tiles = (count + {spec.cols - 1}) // {spec.cols}"
    yield "    mine = tl.maximum(begin - before, 0)"
    yield "    for j in range(tl.minimum(end - before, tiles) - mine):"
    yield from _indented(_indented(_tile(spec, "mine")))
    yield "    before += tiles"


def _tile(spec: RowSpec, begin: str = "begin") -> Iterator[str]:
    """The tile `begin + j` of keys; places beyond the run are read as its last one, and seen by no row.

    Loops count from 0: Triton (3.6, 3.7) does not pipeline the loads of one that does not.
    """
    precision = ', input_precision="ieee"' if spec.dtype == "float32" else ""
    yield f"x = ({begin} + j) * {spec.cols} + c"
    yield "token = (first + step * tl.minimum(x, count - 1)).to(tl.int64)"
    place = "token"
    if spec.counts.ring:  # another name than the program's place has: Triton's variables keep their types in loops
        yield "ring_place = token % capacity"
        place = "ring_place"
    yield from _load(spec, "k", f"(k_at + {place} * K_row)", "K", "d")
    yield from _load(spec, "v", f"(v_at + {place} * V_row)", "V", "dv")
    score = ""
    for n in range(len(chunks(spec.d))):
        score = f"tl.dot(q_{n}, tl.trans(k_{n}){score and f', {score}'}{precision})"
    yield f"s = {score}"
    if spec.softcap:
        yield f"s = tanh(s * (scale / softcap)) * (softcap * {LOG2E})"
    else:
        yield f"s = s * (scale * {LOG2E})"
    if spec.alibi:
        yield "s -= slope[:, None] * tl.abs((row + beside)[:, None] - token.to(tl.int32)[None, :]).to(tl.float32)"
    yield 's = tl.where((x[None, :] >= low[:, None]) & (x[None, :] < high[:, None]), s, float("-inf"))'
    yield "new = tl.maximum(largest, tl.max(s, 1))"
    yield 'safe = tl.where(new == float("-inf"), 0.0, new)'
    yield "p, kept = tl.exp2(s - safe[:, None]), tl.exp2(largest - safe)"
    yield "total, largest = total * kept + tl.sum(p, 1), new"
    yield "p = p.to(v_0.dtype)"
    for n in range(len(chunks(spec.dv))):
        yield f"acc_{n} = tl.dot(p, v_{n}, acc_{n} * kept[:, None]{precision})"


def _finish(spec: RowSpec) -> Iterator[str]:
    yield "number = (batch * all_heads + head) * m + row  # (rows,) among all rows"
    if spec.split:
        yield "# my share: its values' mean, and its lse in units of log2"
        yield "at = number * splits + split"
        yield 'lse = tl.where(total == 0, float("-inf"), largest + tl.log2(total))'
        yield "tl.store(Work + at, lse, mask=valid)"
        yield "some = valid & (total != 0)  # NaN is something"
        yield "inverse = tl.where(some, 1.0 / total, 0.0)"
        for n, (_, width, live) in enumerate(chunks(spec.dv)):
            inside = f" & dv_live_{n}[None, :]" if live < width else ""
            yield f"sums_at = (Work + sums + at * {spec.dv})[:, None] + dv_{n}[None, :]"
            yield f"tl.store(sums_at, acc_{n} * inverse[:, None], mask=some[:, None]{inside})"
        return
    yield from _normalised(spec, "[:, None]", ", mask=valid, other=0.0")
    yield "tl.store(Lse + number, lse, mask=valid)"
    yield "out_at = Out + batch * Out_batch + head.to(tl.int64) * Out_head + row.to(tl.int64) * Out_row"
    yield from _store(spec, "out_at[:, None]", "[None, :]", "valid[:, None]")


def _normalised(spec: RowSpec, spread: str, masked: str) -> Iterator[str]:
    """acc and lse of largest, total and acc; the sink joins the sum and has no value."""
    if spec.sinks:
        yield f"sink = tl.load(Sinks + head{masked}) * {LOG2E}"
        yield "above = tl.maximum(largest, sink)"
        yield 'safe = tl.where(above == float("-inf"), 0.0, above)'
        yield "alone, less = total == 0, tl.exp2(largest - safe)"
        yield "total, largest = total * less + tl.exp2(sink - safe), safe"
        for n in range(len(chunks(spec.dv))):
            yield f"acc_{n} = acc_{n} * less{spread}"
    yield "inverse = tl.where(total == 0, 0.0, 1.0 / total)  # NaN stays NaN"
    for n in range(len(chunks(spec.dv))):
        yield f"acc_{n} = acc_{n} * inverse{spread}"
    yield f'lse = tl.where(total == 0, float("-inf"), (largest + tl.log2(total)) * {LN2})'
    if spec.sinks:
        yield f"lse = tl.where(alone, tl.load(Sinks + head{masked}), lse)  # exactly"


def _store(spec: RowSpec, at: str, spread: str, mask: str) -> Iterator[str]:
    dim = "" if spec.aligned else " * Out_dim"
    for n, (_, width, live) in enumerate(chunks(spec.dv)):
        where = " & ".join(x for x in (mask, f"dv_live_{n}{spread}" if live < width else "") if x)
        option = f", mask={where}" if where else ""
        yield f"tl.store({at} + dv_{n}{spread}{dim}, acc_{n}.to(Out.dtype.element_ty){option})"


# ---- all shares of one row -------------------------------------------------------------------------------------------
def _merge(spec: RowSpec) -> Iterator[str]:
    """One program for each row; shares are taken BLOCK at a time. A share of no key has an lse only."""
    yield from _in_elements(spec)
    yield "number = tl.program_id(0).to(tl.int64)"
    yield "row, batch = number % m, number // m // all_heads"
    yield "head = number // m % all_heads"
    yield from _columns(spec)
    each = (
        f"for s in range(0, splits, {BLOCK}):",
        '    share_lse = tl.load(Work + number * splits + s + b, mask=s + b < splits, other=float("-inf"))',
    )
    yield f"b = tl.arange(0, {BLOCK})"
    yield f'tops = tl.full(({BLOCK},), float("-inf"), tl.float32)'
    yield from each
    yield "    tops = tl.maximum(tops, share_lse)"
    yield "largest = tl.max(tops, 0)"
    yield 'safe = tl.where(largest == float("-inf"), 0.0, largest)'
    yield f"weights = tl.zeros(({BLOCK},), tl.float32)"
    for n, (_, width, _) in enumerate(chunks(spec.dv)):
        yield f"sum_{n} = tl.zeros(({BLOCK}, {width}), tl.float32)"
    yield from each
    yield "    weight = tl.exp2(share_lse - safe)"
    yield "    weights += weight"
    for n, (_, width, live) in enumerate(chunks(spec.dv)):
        inside = f" & dv_live_{n}[None, :]" if live < width else ""
        yield f"    sums_at = (Work + sums + (number * splits + s + b) * {spec.dv})[:, None] + dv_{n}[None, :]"
        yield f"    mean = tl.load(sums_at, mask=(weight != 0)[:, None]{inside}, other=0.0)"
        yield f"    sum_{n} += weight[:, None] * mean"
    yield "total = tl.sum(weights, 0)"
    for n in range(len(chunks(spec.dv))):
        yield f"acc_{n} = tl.sum(sum_{n}, 0)"
    yield from _normalised(spec, "", "")
    yield "tl.store(Lse + number, lse)"
    yield from _store(spec, "(Out + batch * Out_batch + head * Out_head + row * Out_row)", "", "")


def _indented(lines: Iterator[str]) -> Iterator[str]:
    """The lines of a block."""
    for line in lines:
        yield "    " + line


# ---- tables ----------------------------------------------------------------------------------------------------------
CLASSES, BOUND = 10, 9  # integers of a record; see row_device


def term_words(bounds: int) -> int:
    """Integers of a term's record."""
    return CLASSES + 2 * BOUND * bounds


def row_tables(plan: RowPlan, heads_together: int) -> tuple[Ints, int, int]:
    """(integers, where the members are, how many): the records of all terms, then a member for `heads_together` query
    heads of one key/value head or fewer.
    """
    words, bounds = Writer(), bounds_of(plan)
    members = []
    for share in plan.shares:
        lists = [_lists(words, relation) for relation in share.relations]
        at = words.size
        for relation, places in zip(share.relations, lists, strict=True):
            words.put(term_record(relation, bounds, places))
        heads = _members(share.heads, plan.problem.group, heads_together)
        members += [(*head, len(share.relations), at) for head in heads]
    at = words.put(members)
    return words.all(), at, len(members)


def _members(found: Sequence[Heads], group: int, together: int) -> Iterator[tuple[int, int, int, int]]:
    """(batch row, key/value head, first query head, query heads)"""
    for one in found:
        for batch in range(*one.batch):
            for kv in range(*one.kv):
                for first in range(*one.group, together):
                    yield batch, kv, kv * group + first, min(together, one.group[1] - first)


def term_record(relation: Relation, bounds: int, places: dict[Bound, int]) -> list[int]:
    """The integers of one relation; places: where its step functions lie."""
    keys, diagonal, rows = relation.keys, relation.diagonal, relation.rows
    common = int(np.gcd(keys.step, diagonal.step))
    stride = diagonal.step // common
    inverse = pow(keys.step // common, -1, stride) if stride > 1 else 0
    record = [keys.step * stride, stride, common, inverse, keys.step, keys.phase, diagonal.step, diagonal.phase]
    record += [rows.step, rows.phase]
    for side, nothing in ((relation.lower, NO_LOWER), (relation.upper, NO_UPPER)):
        for bound in side:
            record += _stair(bound) if isinstance(bound, Stair) else _step_function(bound, places)
        record += [0, *nothing] * (bounds - len(side))
    return record


def _stair(b: Stair) -> list[int]:
    if b.is_constant:
        return [0, 1, 1, 0, 0, b.out_lo, b.out_hi, -FAR, FAR]
    return [0, b.rise, b.run, b.shift, b.base, b.out_lo, b.out_hi, b.in_lo, b.in_hi]


def _step_function(bound: Bound, places: dict[Bound, int]) -> list[int]:
    assert not isinstance(bound, Stair)
    at, count = places[bound], len(bound.breaks)
    return [1, at, at + count, count, count.bit_length(), 0, 0, 0, 0]


def _lists(words: Writer, relation: Relation) -> dict[Bound, int]:
    """Writes down the breaks and values of every step function, one after the other; returns where."""
    tables = [b for b in relation.lower + relation.upper if not isinstance(b, Stair)]
    return {b: words.put(np.concatenate([b.breaks.array, b.values.array])) for b in tables}
