"""The kernel of dQ: a tile of queries stays, and keys and values are walked; dQ = scale * the sum over keys of ds K."""

from collections import namedtuple

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents

from weft.kernels.gpu.ops import loads, mask, scores, tiles
from weft.kernels.gpu.tile import entries, places, row_numbers
from weft.kernels.gpu.tile.gradients import keep, where_rows
from weft.kernels.gpu.tile.keys import part_of, walked_keys
from weft.kernels.gpu.tile.walk import once, walk_part

# What the kernel of dQ reads, dQ, and numbers of rows, some of which it leaves for the kernel of dK and dV.
# entries: where gradients of tables are summed.
Tensors = namedtuple("Tensors", "q k v out dout dq numbers entries")

# What a program reads of its rows: tiles of q, dout and out, and their numbers; what it makes scores with.
Read = namedtuple("Read", "q dout out numbers scores")

# What stays while keys are walked. lse: in units of log2. delta: as `scores.weighed` takes it.
Held = namedtuple("Held", "place q dout lse numbers delta scores entries")

# dQ in chunks, float32, and sums of the gradients of tables, see `weft.kernels.gpu.tile.entries`.
Sums = namedtuple("Sums", "dq entries")

# The same, with keys, values and the masks of boxes of one part.
HeldOfPart = namedtuple("HeldOfPart", "place rows k v penalties")


@triton.jit
def query_gradient(C: tl.constexpr, tensors, launch, scaling):
    """dQ of a tile of queries."""
    if C.chained:
        gdc_launch_dependents()  # the kernel of dK and dV may begin where this one leaves room
    program = places.program_of(launch)
    if C.packed and program.item >= places.items_of(program):
        return
    place = places.place_of(C, launch, program)
    loaded = _load(C, tensors, place, scaling)
    sums = Sums(loads.zeros(C, C.d), entries.none(C))
    if C.rank == 1 and not C.several:
        # All of a single line is read before anything waits (benchmarks/notes/triton.md, T19).
        part = part_of(C, place, 0)
        held = _hold(C, tensors, place, loaded)
        sums = _walk(C, tensors, held, part, sums)
    else:
        # The bounds of a grid would take the registers of what is held.
        held = _hold(C, tensors, place, loaded)
        if C.several:
            for n in range(place.launch.parts):
                sums = _walk(C, tensors, held, part_of(C, place, n), sums)
        else:
            sums = _walk(C, tensors, held, part_of(C, place, 0), sums)
    _finish(C, tensors, held, sums)


@triton.jit
def _load(C: tl.constexpr, tensors, place, scaling):
    batch, head, rows = place.head.batch, place.head.head.to(tl.int64), place.rows
    q_rows = loads.near_rows_of(C, tensors.q, rows, batch, head)
    dout_rows = loads.near_rows_of(C, tensors.dout, rows, batch, head)
    q = loads.load(C, C.d, tensors.q, q_rows, None)
    if C.rank > 1 and C.hold_q:  # on grids registers are worth more than the wait
        q = loads.hold(C, q)
    row = (batch * place.launch.all_heads + place.head.head) * place.launch.my_length + rows.token
    numbers = row_numbers.load_numbers(C, tensors.numbers, row)
    dout = loads.load(C, C.dv, tensors.dout, dout_rows, None)
    if C.rank > 1 and C.hold_dout:
        dout = loads.hold(C, dout)
    out = loads.load(C, C.dv, tensors.out, loads.near_rows_of(C, tensors.out, rows, batch, head), None)
    return Read(q, dout, out, numbers, scores.scores_of(C, scaling, batch, place.head.head))


@triton.jit
def _hold(C: tl.constexpr, tensors, place, loaded):
    q, dout, numbers, valid = loaded.q, loaded.dout, loaded.numbers, place.rows.valid
    scale = loaded.scores.scale
    if C.rank <= 1:
        if C.hold_q:
            q = loads.hold(C, q)
        if C.hold_dout:
            dout = loads.hold(C, dout)
    delta = row_numbers.delta_of(C, numbers, loaded.out, dout)
    row_numbers.leave_delta(C, tensors.numbers, numbers.row, delta, valid)
    found = row_numbers.RowNumbers(numbers.row, row_numbers.lse_without_keys(C, numbers.lse, scale), delta)
    if not C.leaves_last:
        row_numbers.leave_stats(C, tensors.numbers, found, valid, scale)
    share = delta * (1.0 / loaded.scores.dropping.scale) if C.dropout else delta
    return Held(place, q, dout, found.lse * scores.LOG2E, found, share, loaded.scores, tensors.entries)


@triton.jit
def _walk(C: tl.constexpr, tensors, held, part, sums):
    penalties = mask.penalties_of(C, part)
    k, v = walked_keys(C, tensors, held.place, part)
    return walk_part(C, once, _step, HeldOfPart(held.place, held, k, v, penalties), part, sums)


@triton.jit
def _step(C: tl.constexpr, KIND: tl.constexpr, held, visit, sums):
    rows, of_tables = held.rows, sums.entries
    tile = tiles.locate(C, KIND, visit)
    k = tiles.load(C, KIND, C.d, held.k, tile)
    v = tiles.load(C, KIND, C.dv, held.v, tile)
    corners = mask.corner_penalties(C, held.penalties, visit)
    begun = scores.begin(C, rows.scores, held.place.rows, tile)
    start = begun[0] if C.adds else (mask.penalty(C, held.penalties, corners) if C.penalty_first else None)
    s, capped = scores.score(C, loads.products(C, rows.q, k, start), rows.scores, held.place.rows, tile, begun)
    if C.rank > 1 and not C.penalty_first:
        s = mask.penalised(C, s, mask.penalty(C, held.penalties, corners))
    p = tl.exp2(scores.exponent(C, s, rows.scores) - rows.lse[:, None])
    p = mask.masked(C, KIND, held.place.rows, tile, (p,), 0.0)[0]
    dp = loads.products(C, rows.dout, v)
    kept = scores.kept_weights(C, p, rows.scores, held.place.rows, tile)
    ds = scores.weighed(C, p, kept, dp, rows.delta[:, None])
    if len(C.entries) > 0:
        true = ds * rows.scores.dropping.scale if C.dropout else ds
        shares = scores.shares_of_reads(C, true, p, capped)
        into = entries.Into(held.place, rows.scores, rows.entries)
        of_tables = entries.add(C, into, tile, shares, of_tables)
    dq = loads.accumulate(C, sums.dq, scores.through_score(C, ds, p, capped).to(k[0].dtype), k)
    return Sums(dq, of_tables)


@triton.jit
def _finish(C: tl.constexpr, tensors, held, sums):
    place, rows, scale = held.place, held.place.rows, held.scores.scale
    if C.leaves_last:
        row_numbers.leave_stats(C, tensors.numbers, held.numbers, rows.valid, scale)
    if C.summed > 0:
        entries.leave(C, entries.Into(place, held.scores, tensors.entries), sums.entries)
    dq = loads.scaled(sums.dq, scale * held.scores.dropping.scale if C.dropout else scale)
    if C.rank == 0:
        dq = where_rows(rows.within, dq)
    block = loads.rows_of(C, tensors.dq, rows, place.head.batch, place.head.head.to(tl.int64))
    keep(C, C.d, tensors.dq, block, dq, rows.valid)
