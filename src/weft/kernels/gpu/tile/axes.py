"""The columns that a tile of rows walks, as the tables of a plan have them: runs on a line, boxes on a grid, blocks."""

from collections import namedtuple

import triton
import triton.language as tl

from weft.kernels.gpu.ops.bounds import is_out, lines, lower_table, positions, stairs, upper_table
from weft.kernels.gpu.tables import pack
from weft.score import dropout

GROUPED = tl.constexpr(dropout.GROUPED)
PART, AXIS = tl.constexpr(pack.PART), tl.constexpr(pack.AXIS)


# The run of columns of one term on a line. part: where the tables describe it. first: its first coordinate. count: its
# columns. step: between columns. length: of the axis. Of its tiles, those from `left` to `full` are full, and there are
# `boxes`. pace: tokens from one tile to the next. skipped: columns before the run, with which its first tile begins.
Line = namedtuple("Line", "part first count step length left full boxes pace skipped")

# The run of columns along one axis of a grid, in boxes. first, count, step, length: as those of a Line. log: log2 of
# the box. boxes: their number. column (cols,): of each column of a box its place on this axis. low, high (rows,): the
# columns that each row sees. pace: tokens from one box to the next.
Axis = namedtuple("Axis", "first count step length log boxes column low high pace")

# What a tile of rows walks in one go: on a line, one run for each term; on a grid, boxes of one term. runs: Lines or
# Axes. bounds: of each Line the columns (low, high), (rows,) each, that each row sees. column (cols,): the columns of a
# tile, and token (cols,): how far their tokens lie from the tile's first. bases: of each run on a line its first token,
# on a grid of the part. more, more_at: full tiles of other terms that follow, and the first token of these less what
# comes before them. lists: a LeftOut, or () where no tokens are listed.
Part = namedtuple("Part", "runs bounds column token bases more more_at lists")

# Tokens of a list. keys_at: where the tables list the columns, in another order too, or of pages the first token of
# each, or 0. rows (rows,):
# 1 for rows that a list leaves out. columns: where the tables have the columns that one leaves out, or 0. part: where
# they have the token of coordinate 0.
LeftOut = namedtuple("LeftOut", "tables keys_at rows columns part")

# Blocks of columns. columns: where the tables list them. places, bits: where they have the pairs of each block. begin,
# end: the first column that some row sees, and the one after the last. column, token (cols,): of a block.
Blocks = namedtuple("Blocks", "columns places bits begin end column token")


# ---- lines -----------------------------------------------------------------------------------------------------------
@triton.jit
def line_bounds(C: tl.constexpr, place, line):
    """The columns of a run that each row sees, (rows,) each: positions in the run, or coordinates of listed tokens."""
    record, i = line.part + (PART + AXIS), place.rows.at[0]
    if C.formula and C.lines:
        low, high = lines(record, i, line.length)
    elif C.formula:
        low, high = stairs(record, i, line.length)
    else:
        low = lower_table(place.launch.tables, record, i, place.item)
        high = upper_table(place.launch.tables, record + 2, i, place.item, line.length)
    if not C.listed:
        inverse, digits = tl.load(line.part + (PART + 4)), tl.load(line.part + (PART + 5))
        low = positions(low, line.first, line.step, inverse, digits)
        high = positions(high, line.first, line.step, inverse, digits)
    if C.neighbours:
        low = tl.maximum(low, line.skipped)
    return low, high


@triton.jit
def _term(C: tl.constexpr, place, part, run, TERM: tl.constexpr):
    """The run of a term and its bounds; part, run: where the tables have those of the first term.

    Of launches that are packed in one, some may have fewer terms: such a term is read as the first, and has no columns.
    """
    launch, bounds = place.launch, ()
    if TERM > 0 and C.packed:
        there = launch.parts > TERM
        part += tl.where(there, (PART + C.axis_words) * TERM, 0)
        run += tl.where(there, 4 * TERM, 0)
    else:
        part += (PART + C.axis_words) * TERM
        run += 4 * TERM
    first, count = tl.load(run), tl.load(run + 1)
    if TERM > 0 and C.packed:
        count = tl.where(launch.parts > TERM, count, 0)
    step, length = tl.load(part + PART), tl.load(part + (PART + 2))
    left = tl.load(run + 2)
    full = left + tl.load(run + 3)
    skipped = ()
    if C.neighbours:
        # tiles from a multiple of 16 on: columns before the run are masked with those of its low edge
        skipped = (tl.load(part) + first) % GROUPED
        first, count, left = first - skipped, count + tl.where(count > 0, skipped, 0), left + (skipped > 0).to(tl.int32)
        full = tl.maximum(full, left)
    boxes = (count + (C.cols - 1)) // C.cols
    line = Line(part, first, count, step, length, left, full, boxes, step * C.cols, skipped)
    if not C.few_edges:
        bounds = line_bounds(C, place, line)
    return line, bounds


@triton.jit
def line_part(C: tl.constexpr, place, n):
    """The n-th part of a line, or all its terms, where these are walked in one loop."""
    launch, words = place.launch, PART + C.axis_words
    part, run = launch.tables + launch.parts_at + n * words, place.record + 2 + n * 4
    column = tl.arange(0, C.cols)
    terms = [_term(C, place, part, run, term) for term in C.term_numbers]
    runs, bounds = [term[0] for term in terms], [term[1] for term in terms]
    line = runs[0]
    more, more_at = line.boxes, line.boxes
    if C.more:
        there = launch.parts > 1
        more = tl.load(run + 7, mask=there, other=0)
        more_at = tl.load(part + words, mask=there, other=0) + tl.load(run + 4, mask=there, other=0)
        more_at -= (line.full if C.apart else line.boxes) * line.pace
    bases = [tl.load(line.part) + line.first for line in runs]
    return Part(runs, bounds, column, column * runs[0].step, bases, more, more_at, _lists(C, place, part))


@triton.jit
def with_bounds(part, bounds):
    """A part whose bounds were read later, or once more."""
    return Part(part.runs, bounds, part.column, part.token, part.bases, part.more, part.more_at, part.lists)


@triton.jit
def _lists(C: tl.constexpr, place, part):
    found = ()
    if C.listed:
        tables = place.launch.tables
        keys_at, rows_out, columns_out = tl.load(part + 1), tl.load(part + 2), tl.load(part + 3)
        rows = is_out(tables, rows_out, place.rows.token)
        found = LeftOut(tables, keys_at, rows, columns_out, part)
    elif C.ordered or C.paged:
        found = LeftOut(place.launch.tables, tl.load(part + 1), (), (), part)
    return found


# ---- grids -----------------------------------------------------------------------------------------------------------
@triton.jit
def _axis(C: tl.constexpr, place, part, run, A: tl.constexpr):
    """The run along axis A; part, run: where the tables have the first axis."""
    record, at = part + C.axis_words * A, run + 4 * A
    first, count = tl.load(at), tl.load(at + 1)
    step, length, log = tl.load(record), tl.load(record + 2), tl.load(record + 1)
    column, pace = tl.arange(0, C.cols), step << log
    for later in tl.static_range(C.rank - 1, A, -1):
        column = column >> tl.load(part + (C.axis_words * later + 1))
        pace = pace * tl.load(part + (C.axis_words * later + 2))
    if A > 0:
        column = column & ((1 << log) - 1)
    boxes = (count + (1 << log) - 1) >> log
    bounds = place.launch.tables + tl.load(record + 3) + 2 * place.rows.at[A]
    low, high = tl.load(bounds), tl.load(bounds + 1)
    inverse, digits = tl.load(record + 4), tl.load(record + 5)
    low = positions(low, first, step, inverse, digits)
    high = positions(high, first, step, inverse, digits)
    return Axis(first, count, step, length, log, boxes, column, low, high, pace)


@triton.jit
def grid_part(C: tl.constexpr, place, n):
    """The n-th part of a grid: the boxes of one term."""
    tables = place.launch.tables
    part = tables + place.launch.parts_at + n * (PART + C.axis_words * C.rank)
    run = place.record + 2 * C.rank + n * (4 * C.rank)
    last_first = [_axis(C, place, part + PART, run, a) for a in C.axes_last_first]
    runs = [last_first[a] for a in C.axes_last_first]
    base, first, token = runs[0].first, runs[0].first, runs[0].column * runs[0].step
    for a in tl.static_range(1, C.rank):
        first, token = first * runs[a].length, token * runs[a].length + runs[a].column * runs[a].step
        base, first = tl.load(part) + first + runs[a].first, first + runs[a].first
    return Part(runs, (), tl.arange(0, C.cols), token, (base,), base, base, _lists(C, place, part))


# ---- blocks ----------------------------------------------------------------------------------------------------------
@triton.jit
def blocks_of(C: tl.constexpr, place):
    """All blocks of columns of the remainder."""
    tables = place.launch.tables
    columns, places, bits = tables + tl.load(tables), tables + tl.load(tables + 1), tables + tl.load(tables + 2)
    begin, end = tl.load(tables + 3), tl.load(tables + 4)
    column = tl.arange(0, C.cols)
    return Blocks(columns, places, bits, begin, end, column, column)
