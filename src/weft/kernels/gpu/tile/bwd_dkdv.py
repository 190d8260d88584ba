"""The kernel of dK and dV: a tile of keys stays, and queries are walked, head by head of those that share the keys.

dK = scale * the sum over queries of ds^T Q, and dV = the sum of p^T dO. Where a thread has no registers for both sums,
a launch makes one of them. It may make dQ as well, which all programs that meet its rows add up in memory. Tiles are
transposed: rows are keys, and columns are queries.
"""

from collections import namedtuple

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from weft.kernels.gpu import constants
from weft.kernels.gpu.ops import loads, mask, scores, tiles
from weft.kernels.gpu.tile import entries, places
from weft.kernels.gpu.tile.gradients import joined, keep, where_rows
from weft.kernels.gpu.tile.keys import part_of
from weft.kernels.gpu.tile.row_numbers import lse_without_keys
from weft.kernels.gpu.tile.walk import walk_part

STATS = tl.constexpr(constants.STATS)


# What the kernel of dK and dV reads, and what it makes; None for what it does not make. numbers: of queries. sums: dK
# and then dV, float32, of few keys alone, which some launches leave for others; slots: of each token its row there, or
# -1.
# entries: where gradients of tables are summed.
Tensors = namedtuple("Tensors", "q k v dout dq dk dv numbers sums slots entries")

# What a program reads of its keys: tiles of k and v. wanted (rows,): which keys join sums of dQ.
Keys = namedtuple("Keys", "k v wanted")

# Columns of Stats, and matrices (rows, STATS) by which products subtract lse and delta, where they do so.
Folding = namedtuple("Folding", "column of_lse of_delta")

# dK and dV of a tile of keys in chunks, float32; () for what is not made. entries: sums of the gradients of tables, see
# `weft.kernels.gpu.tile.entries`, of one head.
Sums = namedtuple("Sums", "dk dv entries")

# What stays while the queries of a part are walked. q, dout, dq: how far each query of a tile lies from its first one,
# in each of these tensors.
HeldOfPart = namedtuple("HeldOfPart", "place tensors scaling keys folding penalties q dout dq")

# The queries of one head, whose tiles are walked. row: where their numbers begin.
Queries = namedtuple("Queries", "q dout dq row scores")

# What stays while the queries of one head in a part are walked.
HeldOfHead = namedtuple("HeldOfHead", "place part queries")


@triton.jit
def key_gradients(C: tl.constexpr, tensors, launch, scaling):
    """dK and dV of a tile of keys."""
    program = places.program_of(launch)
    if C.packed and program.item >= places.items_of(program):
        return
    place = places.place_of(C, launch, program)
    keys, folding = _load(C, tensors, place), _folding(C)
    dk, dv = loads.zeros(C, C.d) if C.makes != "dv" else (), loads.zeros(C, C.dv) if C.makes != "dk" else ()
    sums = Sums(dk, dv, entries.none(C))
    seen = place.rows.number < 0
    if C.rank == 1 and not C.several:
        # All of a single line is read before anything waits (benchmarks/notes/triton.md, T19).
        part = part_of(C, place, 0)
        keys = _begin(C, keys)
        sums, seen = _walk(C, HeldOfPart(place, tensors, scaling, keys, folding, (), (), (), ()), part, sums, seen)
    else:
        keys = _begin(C, keys)
        held = HeldOfPart(place, tensors, scaling, keys, folding, (), (), (), ())
        if C.several:
            for n in range(place.launch.parts):
                sums, seen = _walk(C, held, part_of(C, place, n), sums, seen)
        else:
            sums, seen = _walk(C, held, part_of(C, place, 0), sums, seen)
    _finish(C, tensors, place, scaling, sums, seen)


# ---- what stays ------------------------------------------------------------------------------------------------------
@triton.jit
def _load(C: tl.constexpr, tensors, place):
    """Keys and values; none where a part reads those that its queries see."""
    batch, head, rows = place.head.batch, place.head.kv_head, place.rows
    k, v, wanted = (), (), rows.valid
    if not C.reads_seen:
        if C.with_dq:  # what joins sums over keys joins them once, and where some query sees it
            wanted = rows.valid & rows.within
        k = loads.load(
            C, C.d, tensors.k, loads.near_rows_of(C, tensors.k, rows, batch, head), wanted if C.with_dq else None
        )
        if C.makes != "dv":
            v = loads.load(C, C.dv, tensors.v, loads.near_rows_of(C, tensors.v, rows, batch, head), None)
    return Keys(k, v, wanted)


@triton.jit
def _load_seen(C: tl.constexpr, tensors, place, part):
    """Keys and values of a part. Keys that none of its queries sees are 0: they join sums of dQ, whatever they hold."""
    batch, head, rows = place.head.batch, place.head.kv_head, place.rows
    wanted = rows.valid & _some_column(C, part)
    if C.listed:
        wanted &= part.lists.rows == 0
    k = loads.load(C, C.d, tensors.k, loads.near_rows_of(C, tensors.k, rows, batch, head), wanted)
    v = loads.load(
        C, C.dv, tensors.v, loads.near_rows_of(C, tensors.v, rows, batch, head), wanted if C.rank > 1 else None
    )  # fmt: skip
    return Keys(k, v, wanted)


@triton.jit
def _some_column(C: tl.constexpr, part):
    """Whether a row (rows,) sees a column, by its bounds."""
    if C.rank == 1:
        some = part.bounds[0][0] < part.bounds[0][1]
    else:
        some = part.runs[0].low < part.runs[0].high
        for a in tl.static_range(1, C.rank):
            some = some & (part.runs[a].low < part.runs[a].high)
    return some


@triton.jit
def _folding(C: tl.constexpr):
    found = ()
    if C.folded:
        column, rows = tl.arange(0, STATS), (tl.arange(0, C.rows) >= 0)[:, None]
        dtype: tl.constexpr = tl.float32 if C.single or C.upcast else tl.bfloat16
        of_lse = tl.where((column < 8)[None, :] & rows, 1.0, 0.0).to(dtype)
        found = Folding(column, of_lse, tl.where((column >= 8)[None, :] & rows, 1.0, 0.0).to(dtype))
    return found


@triton.jit
def _begin(C: tl.constexpr, keys):
    """Wait for what the launch before this one leaves, and hold keys."""
    if C.chained and not C.adds_shared:
        gdc_wait()
    if C.chained and C.accumulate:
        gdc_launch_dependents()
    if C.hold_k:
        keys = Keys(loads.hold(C, keys.k), keys.v, keys.wanted)
    return keys


# ---- the walk --------------------------------------------------------------------------------------------------------
@triton.jit
def _walk(C: tl.constexpr, held, part, sums, seen):
    """Walk the queries of a part; seen (rows,): keys on a grid that some query sees."""
    tensors, keys, penalties = held.tensors, held.keys, mask.penalties_of(C, part)
    if C.rank > 1:
        seen |= _some_column(C, part)
    q, dout = loads.reach(C, tensors.q, part.token, 1)[:, None], loads.reach(C, tensors.dout, part.token, 1)[:, None]
    dq = q
    if C.with_dq:
        dq = loads.reach(C, tensors.dq, part.token, 1)[None, :]
    if C.reads_seen:
        keys = _load_seen(C, tensors, held.place, part)
    held = HeldOfPart(held.place, tensors, held.scaling, keys, held.folding, penalties, q, dout, dq)
    return walk_part(C, _each_head, _step, held, part, sums), seen


@triton.jit
def _each_head(C: tl.constexpr, WALK: tl.constexpr, STEP: tl.constexpr, held, part, sums):
    """A walk for each query head that shares the keys."""
    head = held.place.head
    if C.grouped:
        for n in range(head.group):
            sums = _of_head(C, WALK, STEP, HeldOfHead(held.place, held, _queries(C, held, head.head + n)), part, sums)
    else:
        sums = _of_head(C, WALK, STEP, HeldOfHead(held.place, held, _queries(C, held, head.head)), part, sums)
    return sums


@triton.jit
def _of_head(C: tl.constexpr, WALK: tl.constexpr, STEP: tl.constexpr, held, part, sums):
    """A walk for one query head, whose sums for tables are left in memory."""
    sums = WALK(C, STEP, held, part, sums)
    if C.summed > 0:
        into = entries.Into(held.place, held.queries.scores, held.part.tensors.entries)
        entries.leave(C, into, sums.entries)
        sums = Sums(sums.dk, sums.dv, entries.none(C))
    return sums


@triton.jit
def _queries(C: tl.constexpr, held, head):
    batch, tensors, launch, wide = held.place.head.batch, held.tensors, held.place.launch, head.to(tl.int64)
    q = loads.Walked(tensors.q, loads.head_of(C, tensors.q, batch, wide), held.q, loads.columns(C.d))
    dout = loads.Walked(tensors.dout, loads.head_of(C, tensors.dout, batch, wide), held.dout, loads.columns(C.dv))
    row, dq = (batch * launch.all_heads + head) * launch.their_length, q
    if C.with_dq:
        dq = loads.Walked(tensors.dq, loads.head_of(C, tensors.dq, batch, wide), held.dq, loads.columns(C.d))
    return Queries(q, dout, dq, row, scores.scores_of(C, held.scaling, batch, head))


# ---- one tile --------------------------------------------------------------------------------------------------------
# A tile of queries. q: its rows (cols, d). numbers: Stats (cols, STATS) where products subtract them, else lse (cols,)
# in units of log2. corners: `mask.corner_penalties`.
QueryTile = namedtuple("QueryTile", "tile q numbers corners")


@triton.jit
def _step(C: tl.constexpr, KIND: tl.constexpr, held, visit, sums):
    part, dk = held.part, sums.dk
    tile = tiles.locate(C, KIND, visit)
    q = tiles.load(C, KIND, C.d, held.queries.q, tile)
    corners = mask.corner_penalties(C, part.penalties, visit)
    queries = QueryTile(tile, q, _numbers(C, KIND, held, tile), corners)
    if C.products_first:
        dv, ds = _together(C, KIND, held, queries, sums.dv)
        of_tables = ()
    else:
        dv, ds, of_tables = _in_turn(C, KIND, held, queries, sums)
    if C.with_dq:
        ds = tl.where(part.keys.wanted[:, None], ds, 0.0)  # of unseen keys it may be infinite
    if C.makes != "dv":
        ds = ds.to(q[0].dtype)
        dk = loads.accumulate(C, dk, ds, q)
    if C.with_dq:
        _add_to_dq(C, KIND, held, tile, ds)
    return Sums(dk, dv, of_tables)


@triton.jit
def _of_queries(C: tl.constexpr, KIND: tl.constexpr, held, tile, numbers):
    """Of each query of a tile (cols,) its number in a tensor (batch, heads, length)."""
    token = tile.token - tile.at if C.gathered else tile.visit.part.token
    where = numbers + (held.queries.row + tile.at) + token
    if C.listed or not (KIND == "full" or C.whole or C.ordered):
        found = tl.load(where, mask=tile.there, other=0.0)
    else:
        found = tl.load(where)
    return found


@triton.jit
def _numbers(C: tl.constexpr, KIND: tl.constexpr, held, tile):
    numbers = held.part.tensors.numbers
    if C.folded:
        where = numbers.stats + (held.queries.row + tile.at) * STATS
        token = (tile.token - tile.at if C.gathered else tile.visit.part.token)[:, None]
        if C.ordered or not C.aligned:
            token = token.to(tl.int64)
        where += token * STATS + held.part.folding.column[None, :]
        if C.listed or not (KIND == "full" or C.whole or C.ordered):
            found = tl.load(where, mask=tile.there[:, None], other=0.0)
        else:
            found = tl.load(where)
        found = found.to(tl.float32) if C.upcast else found
    else:
        found = _of_queries(C, KIND, held, tile, numbers.lse)
        if C.rank > 1 or C.scored:  # elsewhere weights are masked after this
            found = lse_without_keys(C, found, held.part.scaling.scale)
        found = found * scores.LOG2E
    return found


@triton.jit
def _product(C: tl.constexpr, part, queries, begun):
    """Products of keys and queries (rows, cols), less lse / scale where it is folded, and with penalties of grids or
    what score functions add. begun: of `scores.begin`.
    """
    start = begun[0] if C.adds else (mask.penalty(C, part.penalties, queries.corners) if C.penalty_first else None)
    if C.folded:
        start = loads.dot(C, part.folding.of_lse, tl.trans(queries.numbers), start)
    return loads.products(C, part.keys.k, queries.q, start)


@triton.jit
def _together(C: tl.constexpr, KIND: tl.constexpr, held, queries, dv):
    """(dV, ds): both products first, and one mask."""
    rows, folding = held.place.rows, held.part.folding
    dout = tiles.load(C, KIND, C.dv, held.queries.dout, queries.tile)
    begun = scores.begin(C, held.queries.scores, rows, queries.tile)
    s = _product(C, held.part, queries, begun)
    dp = loads.products(C, held.part.keys.v, dout, loads.dot(C, folding.of_delta, tl.trans(queries.numbers)))
    if C.rank > 1 and not C.penalty_first:
        s = mask.penalised(C, s, mask.penalty(C, held.part.penalties, queries.corners))
    p = tl.exp2(scores.exponent(C, s, held.queries.scores))
    if C.rank == 1:
        p, dp = mask.masked(C, KIND, rows, queries.tile, (p, dp), 0.0)  # dp: whatever lies in a key that no query sees
    else:
        p = mask.masked(C, KIND, rows, queries.tile, (p,), 0.0)[0]
    return loads.accumulate(C, dv, p.to(dout[0].dtype), dout), p * dp


@triton.jit
def _in_turn(C: tl.constexpr, KIND: tl.constexpr, held, queries, sums):
    """(dV, ds, sums for tables): the products of dO after all that needs the weights alone."""
    part, tile, dv, of_tables = held.part, queries.tile, sums.dv, sums.entries
    begun = scores.begin(C, held.queries.scores, held.place.rows, tile)
    product = _product(C, part, queries, begun)
    s, capped = scores.score(C, product, held.queries.scores, held.place.rows, tile, begun)
    if C.rank > 1 and not C.penalty_first:
        s = mask.penalised(C, s, mask.penalty(C, part.penalties, queries.corners))
    s = scores.exponent(C, s, held.queries.scores)
    p = tl.exp2(s if C.folded else s - queries.numbers[None, :])
    p = mask.masked(C, KIND, held.place.rows, tile, (p,), 0.0)[0]
    dout = tiles.load(C, KIND, C.dv, held.queries.dout, tile)
    ds, weights = p, scores.kept_weights(C, p, held.queries.scores, held.place.rows, tile)
    if C.makes != "dk":
        dv = loads.accumulate(C, dv, weights.to(dout[0].dtype), dout)
    if C.makes != "dv":
        if C.folded:
            start = loads.dot(C, part.folding.of_delta, tl.trans(queries.numbers))
            ds = p * loads.products(C, part.keys.v, dout, start)
        else:
            delta = _of_queries(C, KIND, held, tile, part.tensors.numbers.delta)
            dp = loads.products(C, part.keys.v, dout)
            if C.dropout:
                delta = delta * (1.0 / held.queries.scores.dropping.scale)
            ds = scores.weighed(C, p, weights, dp, delta[None, :])
        if C.summed > 0:
            true = ds * held.queries.scores.dropping.scale if C.dropout else ds
            shares = scores.shares_of_reads(C, true, p, capped)
            into = entries.Into(held.place, held.queries.scores, part.tensors.entries)
            of_tables = entries.add(C, into, tile, shares, of_tables)
        ds = scores.through_score(C, ds, p, capped)
        if C.rank < 2 and KIND != "full":
            # Whatever lies in a key that no query sees. Not in a branch for tiles with an edge: with one, LLVM spoiled
            # masks of listed tokens (benchmarks/notes/triton.md, T67).
            ds = tl.where(p == 0, 0.0, ds)
    return dv, ds, of_tables


@triton.jit
def _add_to_dq(C: tl.constexpr, KIND: tl.constexpr, held, tile, ds):
    """DQ += ds^T K, transposed: a tensor core's instruction takes 64 rows, so dims rather than a tile's columns."""
    dq, k = held.queries.dq, held.part.keys.k
    where, inside = dq.pointer, dq.inside
    if C.gathered:
        inside = loads.token_at(C, dq.tensor, tile.token)[None, :]
    else:
        where += loads.tile_at(C, dq.tensor, tile.at)
    for n in tl.static_range(len(C.d)):
        column, live = dq.columns[n]
        value = loads.dot(C, tl.trans(k[n]), ds)
        at = where + (inside + (column[:, None] if C.aligned else column[:, None] * dq.tensor.dim))
        if C.listed or not (KIND == "full" or C.whole):
            if C.d[n][2] < C.d[n][1]:
                tl.atomic_add(at, value, mask=tile.there[None, :] & tl.trans(live), sem="relaxed")
            else:
                tl.atomic_add(at, value, mask=tile.there[None, :], sem="relaxed")
        elif C.d[n][2] < C.d[n][1]:
            tl.atomic_add(at, value, mask=tl.trans(live), sem="relaxed")
        else:
            tl.atomic_add(at, value, sem="relaxed")


# ---- results ---------------------------------------------------------------------------------------------------------
@triton.jit
def _finish(C: tl.constexpr, tensors, place, scaling, sums, seen):
    """Store what was made, or leave it for a launch that adds it."""
    dk, dv, rows = sums.dk, sums.dv, place.rows
    batch, head = place.head.batch, place.head.kv_head
    if C.rank > 1:  # whatever lies in a key that no query sees: a test for each pair would be one in every tile
        dk, dv = where_rows(seen, dk), where_rows(seen, dv)
    dk = loads.scaled(dk, scaling.scale * scaling.dropping[2] if C.dropout else scaling.scale)
    if C.dropout:
        dv = loads.scaled(dv, scaling.dropping[2])
    if C.leaves_shared:
        dk_at, dv_at = _slots_of(C, tensors, batch, head, tl.load(tensors.slots + rows.token))
        if C.makes != "dv":
            keep(C, C.d, tensors.sums, dk_at, dk, rows.valid)
        if C.makes != "dk":
            keep(C, C.dv, tensors.sums, dv_at, dv, rows.valid)
    else:
        if C.makes != "dv":
            dk_rows = loads.near_rows_of(C, tensors.dk, rows, batch, head)
        if C.makes != "dk":
            dv_rows = loads.near_rows_of(C, tensors.dv, rows, batch, head)
        if C.adds_shared:
            dk, dv = _join(C, tensors, place, dk, dv)
        if C.makes != "dv":
            keep(C, C.d, tensors.dk, dk_rows, dk, rows.valid)
        if C.makes != "dk":
            keep(C, C.dv, tensors.dv, dv_rows, dv, rows.valid)


@triton.jit
def _slots_of(C: tl.constexpr, tensors, batch, head, slot):
    """Where the sums dK and dV of keys lie that have rows (rows,) of their own."""
    at, inside = loads.head_of(C, tensors.sums, batch, head), loads.token_at(C, tensors.sums, slot)
    return loads.Block(at, inside), loads.Block(at + C.sums_dv, inside)


@triton.jit
def _join(C: tl.constexpr, tensors, place, dk, dv):
    """Add what other launches left of the keys that they visit; most tiles have none of these."""
    slot = tl.load(tensors.slots + place.rows.token)
    met = place.rows.valid & (slot >= 0)
    some = tl.max(met.to(tl.int32), 0) != 0
    if C.chained:
        # The launches before waited for that of dQ. Some program waits for them, or this launch might end first.
        some = some | (tl.program_id(1) == 0)
    if some:
        if C.chained:
            gdc_wait()
        dk_at, dv_at = _slots_of(C, tensors, place.head.batch, place.head.kv_head, slot)
        if C.makes != "dv":
            dk = joined(C, C.d, tensors.sums, dk_at, dk, met)
        if C.makes != "dk":
            dv = joined(C, C.dv, tensors.sums, dv_at, dv, met)
    return dk, dv
