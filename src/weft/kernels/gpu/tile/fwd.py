"""The forward: a tile of queries stays, and keys and values are walked. Out = softmax(scores) V, Lse its logarithm.

By the online form, or by a shorter one, as on the CPU (docs/decisions/0004). The short form subtracts nothing from
scores, so no tile waits for a maximum and no sum is scaled. Where a row's sum then leaves LEAST to MOST, or weighs what
is not finite, its tile is walked again by the online form. A row's bits are its own: they depend on no other row.
"""

from collections import namedtuple

import triton
import triton.language as tl

from weft.kernels.gpu import constants
from weft.kernels.gpu.ops import epilogue, loads, mask, scores, softmax, tiles
from weft.kernels.gpu.tile import axes, places, walk
from weft.kernels.gpu.tile.keys import part_of, walked_keys

LEAST, MOST = tl.constexpr(constants.LEAST), tl.constexpr(constants.MOST)


# What a forward reads, and Out. lse: (batch, heads, length), float32. sinks: one float32 for each head, or None. sums:
# out in float32 (batch, heads, length, dv), where later launches join other keys, or None.
Tensors = namedtuple("Tensors", "q k v out lse sinks sums")

# What stays while keys are walked. wild (rows,): in a second walk, the rows that need it; else None.
Held = namedtuple("Held", "place q scores wild")

# The same, with keys, values and the masks of boxes of one part.
HeldOfPart = namedtuple("HeldOfPart", "place rows k v penalties")


@triton.jit
def attention(C: tl.constexpr, tensors, launch, scaling):
    """Out and lse of a tile of queries."""
    program = places.program_of(launch)
    if C.packed and program.item >= places.items_of(program):
        return
    place = places.place_of(C, launch, program)
    q_rows = loads.near_rows_of(C, tensors.q, place.rows, place.head.batch, place.head.head.to(tl.int64))
    q = loads.load(C, C.d, tensors.q, q_rows, None)
    scoring = scores.scores_of(C, scaling, place.head.batch, place.head.head)
    if C.no_maximum:
        wild = _attend(C, False, tensors, Held(place, q, scoring, None))
        if tl.max(wild.to(tl.int32), 0) != 0:
            _attend(C, True, tensors, Held(place, q, scoring, wild))
    else:
        _attend(C, True, tensors, Held(place, q, scoring, None))


@triton.jit
def _attend(C: tl.constexpr, ONLINE: tl.constexpr, tensors, held):
    """Walk all keys and store what comes of it. Of the short form: the rows (rows,) that need the online one."""
    sums = softmax.no_sums(C, ONLINE)
    if C.several:
        for n in range(held.place.launch.parts):
            sums = _walk(C, ONLINE, tensors, held, part_of(C, held.place, n), sums)
    else:
        sums = _walk(C, ONLINE, tensors, held, part_of(C, held.place, 0), sums)
    total = tl.sum(sums.total, 1) if C.partial else sums.total
    top = sums.largest if ONLINE else tl.zeros_like(total)
    wild = held.wild
    if not ONLINE:
        wild = (total > MOST) | (total < LEAST)
        for n in tl.static_range(len(sums.acc)):
            wild |= tl.sum(sums.acc[n] * 0.0, 1) != 0.0  # infinite, or not a number
    weight = total
    if C.rounds and not ONLINE:
        weight += softmax.rounding_of(sums.top, tl.bfloat16)  # as their values met them
    acc = scores.kept_sums(C, sums.acc, held.scores)
    _finish(C, ONLINE, tensors, held, epilogue.Rest(acc, top, total, weight), wild)
    return wild


# ---- the walk --------------------------------------------------------------------------------------------------------
@triton.jit
def _walk(C: tl.constexpr, ONLINE: tl.constexpr, tensors, held, part, sums):
    """Walk the keys of a part."""
    STEP: tl.constexpr = _online_step if ONLINE else _short_step
    penalties = mask.penalties_of(C, part)
    k, v = walked_keys(C, tensors, held.place, part)
    stays = HeldOfPart(held.place, held, k, v, penalties)
    if C.ahead:
        first = walk.Visit(part, 0, part.runs[0], part.bounds[0][0], part.bounds[0][1], part.bases[0])
        sums = softmax.Sums(sums.acc, sums.largest, sums.total, sums.top, _begun(C, stays, first))
    if C.few_edges:
        part, sums = walk.walk_few_edges(C, walk.once, STEP, stays, part, sums)
    if C.no_maximum and ONLINE:
        part = _if_seen(C, held.wild, part)
    return walk.walk_rest(C, walk.once, STEP, stays, part, sums)


@triton.jit
def _begun(C: tl.constexpr, held, visit):
    """What products of a tile begin with, for a tile that may lie beyond the last one."""
    return scores.begin(C, held.rows.scores, held.place.rows, tiles.locate(C, "either", visit))[0]


@triton.jit
def _ahead(C: tl.constexpr, held, visit):
    """The same of the next tile: read now, it does not keep that one's products waiting."""
    found = ()
    if C.ahead:
        found = _begun(C, held, walk.Visit(visit.part, visit.j + 1, visit.line, visit.low, visit.high, visit.base))
    return found


@triton.jit
def _scores(C: tl.constexpr, KIND: tl.constexpr, held, visit, tile, ahead):
    """Scores (rows, cols) of a tile, -inf outside of the mask. ahead: what was read for it before, or ()."""
    penalties, rows = held.penalties, held.rows
    outside = ()
    if C.rank > 1:  # made while the keys of the box are under way
        outside = (mask.penalty(C, penalties, mask.corner_penalties(C, penalties, visit)),)
    k = tiles.load(C, KIND, C.d, held.k, tile)
    begun = (ahead, ()) if C.ahead else scores.begin(C, rows.scores, held.place.rows, tile)
    start = begun[0] if C.adds else (outside[0] if C.penalty_first else None)
    s = scores.score(C, loads.products(C, rows.q, k, start), rows.scores, held.place.rows, tile, begun)[0]
    if C.rank > 1 and not C.penalty_first:
        s = mask.penalised(C, s, outside[0])
    return mask.masked(C, KIND, held.place.rows, tile, (s,), float("-inf"))[0]


@triton.jit
def _short_step(C: tl.constexpr, KIND: tl.constexpr, held, visit, sums):
    tile = tiles.locate(C, KIND, visit)
    p = softmax.weights(C, _scores(C, KIND, held, visit, tile, ()), held.rows.scores)
    total = sums.total + softmax.row_sum(C, p)
    v = tiles.load(C, KIND, C.dv, held.v, tile)
    top = softmax.with_top(C, sums.top, p) if C.rounds else sums.top
    p = scores.kept_weights(C, p, held.rows.scores, held.place.rows, tile)
    return softmax.Sums(loads.accumulate(C, sums.acc, p.to(v[0].dtype), v), sums.largest, total, top, ())


@triton.jit
def _online_step(C: tl.constexpr, KIND: tl.constexpr, held, visit, sums):
    tile = tiles.locate(C, KIND, visit)
    s = _scores(C, KIND, held, visit, tile, sums.ahead)
    ahead = _ahead(C, held, visit)
    p, largest, kept = softmax.online_weights(C, s, held.rows.scores, sums.largest)
    total = sums.total * (kept[:, None] if C.partial else kept) + softmax.row_sum(C, p)
    v = tiles.load(C, KIND, C.dv, held.v, tile)
    p = scores.kept_weights(C, p, held.rows.scores, held.place.rows, tile)
    acc = loads.accumulate(C, loads.scaled(sums.acc, kept[:, None]), p.to(v[0].dtype), v)
    return softmax.Sums(acc, largest, total, sums.top, ahead)


@triton.jit
def _if_seen(C: tl.constexpr, wild, part):
    """For the second walk: a part, and one without tiles where no row that needs it sees a key. Without keys sums are 0
    as well.
    """
    sees = wild
    for n in tl.static_range(len(part.runs)):
        run = part.runs[n]
        low, high = (run.low, run.high) if C.rank > 1 else part.bounds[n]
        seen = low < tl.minimum(high, run.count)
        if n == 0:
            sees = seen
        elif C.rank > 1:
            sees = sees & seen
        else:
            sees = sees | seen
    if C.rank == 1:
        for n in tl.static_range(len(part.runs)):
            sees |= part.runs[n].full > part.runs[n].left  # all rows see the keys of such tiles
        if C.more:
            sees |= part.more > 0
    again = tl.max((wild & sees).to(tl.int32), 0)  # 0 or 1
    runs = [_times(C, run, again) for run in part.runs]
    return axes.Part(
        runs, part.bounds, part.column, part.token, part.bases, part.more * again, part.more_at, part.lists
    )


@triton.jit
def _times(C: tl.constexpr, run, again):
    """A run whose numbers of tiles are multiplied by 0 or 1."""
    boxes = run.boxes * again
    if C.rank > 1:
        found = axes.Axis(
            run.first, run.count, run.step, run.length, run.log, boxes, run.column, run.low, run.high, run.pace
        )  # fmt: skip
    else:
        left, full = (run.left * again, run.full * again) if C.apart else (run.left, run.full)
        found = axes.Line(
            run.part, run.first, run.count, run.step, run.length, left, full, boxes, run.pace, run.skipped
        )  # fmt: skip
    return found


# ---- results ---------------------------------------------------------------------------------------------------------
@triton.jit
def _finish(C: tl.constexpr, ONLINE: tl.constexpr, tensors, held, rest, wild):
    """Store out and lse.

    Of a first walk these are also wild rows, which the second stores once more, and rows beyond a tile's end. Those are
    what its last row is. Where something is added to rows, each of them counts once.
    """
    launch, head, rows = held.place.launch, held.place.head, held.place.rows
    alone = rest.total == 0
    if C.sinks:
        rest = epilogue.with_sink(rest, tl.load(tensors.sinks + head.head), ONLINE)
    acc = epilogue.output(rest)
    lse = epilogue.lse_of(rest, ONLINE or C.sinks, C.fast_log)
    if C.sinks:
        sink = tl.load(tensors.sinks + head.head)
        lse = tl.where(alone, sink, epilogue.above_sink(rest, lse, sink, C.fast_log))
    of_head = (head.batch * launch.all_heads + head.head) * launch.my_length
    lse_at = tensors.lse + of_head + rows.token
    block = loads.near_rows_of(C, tensors.out, rows, head.batch, head.head.to(tl.int64))
    done = None
    if C.accumulate and C.no_maximum:
        done = rows.valid & (wild if ONLINE else ~wild)
    elif C.accumulate:
        done = rows.valid
    elif C.no_maximum and ONLINE:
        done = wild
    if C.neighbours or (C.along and C.rank == 1):  # the rows beyond a tile's end have scores or weights of their own
        done = rows.valid if done is None else done & rows.valid
    if C.accumulate:
        # with what earlier launches left in sums and lse, in float32: all are over disjoint keys
        sums = tensors.sums + (of_head + rows.token.to(tl.int64)) * C.sums_row
        merging = epilogue.merged_lse(lse, tl.load(lse_at, mask=done, other=float("-inf")))
        acc, lse = _merged(C, sums, acc, done, merging), merging.lse
    if done is None:
        tl.store(lse_at, lse)
    else:
        tl.store(lse_at, lse, mask=done)
    loads.store(C, C.dv, tensors.out, block, acc, done)


@triton.jit
def _merged(C: tl.constexpr, rows, acc, done, merging):
    """acc merged with the sums (rows, dv) of earlier launches, and left there for later ones; rows: their pointers."""
    found, column = (), loads.columns(C.dv)
    for n in tl.static_range(len(C.dv)):
        where, inside = rows[:, None] + column[n][0][None, :], done[:, None]
        if C.dv[n][2] < C.dv[n][1]:
            inside = inside & column[n][1]
        was = tl.load(where, mask=inside, other=0.0)
        value = (acc[n] * merging.mine[:, None] + was * merging.theirs[:, None]) * merging.inverse[:, None]
        tl.store(where, value, mask=inside)
        found += (value,)
    return found
