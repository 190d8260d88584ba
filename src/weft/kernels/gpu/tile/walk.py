"""Walks over the tiles of columns of a part.

A walk calls `STEP(C, KIND, held, visit, state)` for each tile and returns the last state. KIND says which tiles a loop
has: "edge", tiles that some row sees in part; "full", tiles that all rows see; or "either". held: what stays while
tiles are walked. `EACH(C, WALK, STEP, held, part, state)` does a walk once, or for each head of a group.
"""

from collections import namedtuple

import triton
import triton.language as tl

from weft.kernels.gpu.tile.axes import Line, line_bounds, with_bounds

# One tile of a walk. j: on a line its number in its run; on a grid its numbers along all axes. Of blocks j is the place
# of its number in the tables. line: of lines, the run. low, high: of lines, what each row sees of it (rows,). base: of
# lines, its first token.
Visit = namedtuple("Visit", "part j line low high base")


@triton.jit
def once(C: tl.constexpr, WALK: tl.constexpr, STEP: tl.constexpr, held, part, state):
    """A walk for the only head."""
    return WALK(C, STEP, held, part, state)


@triton.jit
def walk_part(C: tl.constexpr, EACH: tl.constexpr, STEP: tl.constexpr, held, part, state):
    """All tiles of a part."""
    if C.few_edges:
        part, state = walk_few_edges(C, EACH, STEP, held, part, state)
    return walk_rest(C, EACH, STEP, held, part, state)


@triton.jit
def walk_rest(C: tl.constexpr, EACH: tl.constexpr, STEP: tl.constexpr, held, part, state):
    """All tiles of a part, but for those that `walk_few_edges` has walked."""
    if C.few_edges:
        state = EACH(C, walk_full if C.apart else walk_either, STEP, held, part, state)
    elif C.rank == 0:
        state = EACH(C, walk_blocks, STEP, held, part, state)
    elif C.rank > 1:
        state = EACH(C, walk_grid, STEP, held, part, state)
    elif C.apart:
        state = EACH(C, walk_apart, STEP, held, part, state)
    elif C.terms > 1:
        state = EACH(C, walk_terms, STEP, held, part, state)
    else:
        state = EACH(C, walk_either, STEP, held, part, state)
    return state


@triton.jit
def walk_few_edges(C: tl.constexpr, EACH: tl.constexpr, STEP: tl.constexpr, held, part, state):
    """The part with its bounds. They are read, and a loop over edges is entered, only where some tile has an edge: of
    several terms some have none (benchmarks/notes/triton.md, T16).
    """
    line = part.runs[0]
    low, high = tl.zeros_like(held.place.rows.number), tl.zeros_like(held.place.rows.number)
    if line.boxes > line.full - line.left:
        low, high = line_bounds(C, held.place, line)
        if C.apart:
            state = EACH(C, walk_edges, STEP, held, with_bounds(part, ((low, high),)), state)
    return with_bounds(part, ((low, high),)), state


# ---- lines -----------------------------------------------------------------------------------------------------------
@triton.jit
def walk_edges(C: tl.constexpr, STEP: tl.constexpr, held, part, state):
    """Tiles with an edge."""
    line, bounds = part.runs[0], part.bounds[0]
    for n in range(line.boxes - line.full + line.left):
        j = tl.where(n < line.left, n, n + line.full - line.left)
        state = STEP(C, "edge", held, Visit(part, j, line, bounds[0], bounds[1], part.bases[0]), state)
    return state


@triton.jit
def walk_full(C: tl.constexpr, STEP: tl.constexpr, held, part, state):
    """Full tiles, and those of other terms after them."""
    line, bounds = part.runs[0], part.bounds[0]
    last = line.full
    if C.more:
        last += part.more
    for j in range(line.left, last):
        state = STEP(C, "full", held, Visit(part, j, line, bounds[0], bounds[1], part.bases[0]), state)
    return state


@triton.jit
def walk_apart(C: tl.constexpr, STEP: tl.constexpr, held, part, state):
    """Tiles with an edge in a loop of their own, then full ones."""
    state = walk_edges(C, STEP, held, part, state)
    return walk_full(C, STEP, held, part, state)


@triton.jit
def walk_either(C: tl.constexpr, STEP: tl.constexpr, held, part, state):
    """All tiles of one run in their order, and those of other terms after them."""
    line, bounds = part.runs[0], part.bounds[0]
    last = line.boxes
    if C.more:
        last += part.more
    for j in range(last):
        state = STEP(C, "either", held, Visit(part, j, line, bounds[0], bounds[1], part.bases[0]), state)
    return state


@triton.jit
def walk_terms(C: tl.constexpr, STEP: tl.constexpr, held, part, state):
    """The tiles of several terms in one loop."""
    last = part.runs[0].boxes
    for term in tl.static_range(1, C.terms):
        last += part.runs[term].boxes
    for n in range(last):
        state = STEP(C, "either", held, _of_term(C, part, n), state)
    return state


@triton.jit
def _of_term(C: tl.constexpr, part, n):
    """The n-th tile of all terms: the number in its term, and the numbers of that term."""
    one, bounds = part.runs[0], part.bounds[0]
    j, count, step, left, full = n, one.count, one.step, one.left, one.full
    low, high, base, before, skipped = bounds[0], bounds[1], part.bases[0], one.boxes, one.skipped
    for term in tl.static_range(1, C.terms):
        one, bounds = part.runs[term], part.bounds[term]
        here = n >= before  # of this term, or of one after it
        j = tl.where(here, n - before, j)
        count, step = tl.where(here, one.count, count), tl.where(here, one.step, step)
        left, full = tl.where(here, one.left, left), tl.where(here, one.full, full)
        low, high = tl.where(here, bounds[0], low), tl.where(here, bounds[1], high)
        base = tl.where(here, part.bases[term], base)
        if C.neighbours:
            skipped = tl.where(here, one.skipped, skipped)
        before += one.boxes
    line = Line(one.part, one.first, count, step, one.length, left, full, one.boxes, step * C.cols, skipped)
    return Visit(part, j, line, low, high, base)


# ---- grids and blocks ------------------------------------------------------------------------------------------------
@triton.jit
def walk_grid(C: tl.constexpr, STEP: tl.constexpr, held, part, state):
    """The boxes of a grid, the last axis first."""
    count = part.runs[0].boxes
    for a in tl.static_range(1, C.rank):
        count *= part.runs[a].boxes
    j = (0,) * C.rank
    for _ in range(count):
        state = STEP(C, "either", held, Visit(part, j, (), (), (), ()), state)
        j = _next_box(C, part.runs, j)
    return state


@triton.jit
def _next_box(C: tl.constexpr, axes, j):
    found, more = (), 1
    for a in tl.static_range(C.rank - 1, -1, -1):
        here = j[a] + more
        if a > 0:
            over = here == axes[a].boxes
            here, more = tl.where(over, 0, here), tl.where(over, 1, 0)
        found = (here,) + found  # noqa: RUF005
    return found


@triton.jit
def walk_blocks(C: tl.constexpr, STEP: tl.constexpr, held, blocks, state):
    """The blocks of columns that an item names."""
    record = held.place.record
    for j in range(tl.load(record + 1), tl.load(record + 2)):
        state = STEP(C, "either", held, Visit(blocks, j, (), (), (), ()), state)
    return state
