# ruff: noqa: PLR0913 - what a kernel is told
"""One share of the keys of a few rows: what a program of split-KV does. Functions of Triton.

The rows of a program are the query heads of one key/value head, for one token. There are several tokens where their
keys lie in the same residue classes. The rows share every key that is read. A program takes an equal share of the key
tiles of all terms.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents

from weft.kernels.gpu.ops.loads import columns, products
from weft.kernels.gpu.ops.online_softmax import add_tile, finish, lse_2, no_keys
from weft.kernels.gpu.ops.scores import LOG2E, Scores, score
from weft.kernels.gpu.ops.vectors import exists, load_rows, store_rows
from weft.kernels.gpu.split_kv.bounds import BOUND, CLASSES, run_of, share
from weft.kernels.gpu.split_kv.rows import column_of, page_of, rows_of

UNIT = tl.constexpr(4)  # numbers of 16 bytes, in which `sums` is told


class Results(NamedTuple):
    """Where results go: out and lse; or a workspace with the lses of all shares, and from `sums` on their means.

    sinks: scores that join the sums of finished rows, one for each query head, or None.
    """

    out: Any = None
    lse: Any = None
    sinks: Any = None
    work: Any = None
    sums: Any = None


class Operands(NamedTuple):
    """What a program multiplies: queries as chunks (rows, width), and where keys and values of its head begin.

    d, dv: columns; c (cols,): places of a tile.
    """

    q: Any
    k: Any
    v: Any
    d: Any
    dv: Any
    c: Any


class Head(NamedTuple):
    """Where a head begins, and its strides; page: of pages, where keys lie in these."""

    pointer: Any
    page: Any
    row: Any
    dim: Any


class Pair(NamedTuple):
    """Pages of a tile's first and last key, and their columns of the block table."""

    first: Any
    last: Any
    first_column: Any
    last_column: Any


class Tokens(NamedTuple):
    """Tokens of rows or of keys, as `ops.scores` takes them of a tile."""

    token: Any


class Side(NamedTuple):
    """What every tile meets: the rows of a program, what it multiplies, how many keys there are, and `ops.scores`."""

    rows: Any
    operands: Any
    keys: Any
    scores: Any


@triton.jit
def split_kv(C: tl.constexpr, q, k, v, deal, keys, scaling, results):
    """The rows of a program against its share of their keys.

    q, k, v: `loads.Strided`. deal, keys: see `rows`. scaling: `scores.Scaling`, whose shift `keys` has instead.
    """
    if C.chained:
        gdc_launch_dependents()  # the kernel that combines shares may begin where this one leaves room
    rows = rows_of(C, deal, keys)
    d, dv = columns(C.d), columns(C.dv)
    q_at = q.pointer + rows.batch * q.batch + rows.head.to(tl.int64) * q.head + rows.row.to(tl.int64) * q.row
    queries = load_rows(C, C.d, q_at, q.dim, d, rows.valid)
    scores = scores_of_rows(C, scaling, rows)
    softmax = no_keys(C, C.dv)
    k_head = Head(head_at(k, rows, keys.page), k.batch, k.row, k.dim)
    v_head = Head(head_at(v, rows, keys.page), v.batch, v.row, v.dim)
    operands = Operands(queries, k_head, v_head, d, dv, tl.arange(0, C.cols))
    # a name would make tensors of the constants in a tuple (Triton 3.6, 3.7): this one goes without
    if C.several:
        softmax = walk_terms(C, softmax, Side(rows, operands, keys, scores), deal)
    else:
        softmax = walk_term(C, softmax, Side(rows, operands, keys, scores), deal)
    number = (rows.batch * deal.all_heads + rows.head) * deal.m + rows.row  # (rows,) among all rows
    if C.split:
        leave_share(C.dv, softmax, number * deal.splits + rows.split, rows, results, dv)
    else:
        write_rows(C.dv, softmax, number, rows, results, dv)


@triton.jit
def scores_of_rows(C: tl.constexpr, scaling, rows):
    """What scores of the rows are made with; `beside` has the shift. Without ALiBi nothing reads the slope."""
    slope = scaling.scale
    if C.alibi:
        slope = (tl.load(scaling.slopes + rows.head, mask=rows.valid, other=0.0) * LOG2E)[:, None]
    return Scores(scaling.scale, scaling.softcap, scaling.shift, slope, scaling.scale * LOG2E, (), (), (), ())


@triton.jit
def head_at(tensor, rows, PAGE: tl.constexpr):
    """Where the head of keys or values of the rows begins: of their batch row, or of the first page."""
    at = tensor.pointer
    if PAGE == 0:
        at += rows.batch * tensor.batch
    return at + rows.kv_head * tensor.head


# ---- walks over keys -------------------------------------------------------------------------------------------------
@triton.jit
def walk_term(C: tl.constexpr, softmax, side, deal):
    """The program's share of the only term."""
    rows = side.rows
    run = run_of(C, rows, rows.terms)
    begin, end = share((run.count + (C.cols - 1)) // C.cols, rows.split, deal.splits)
    return walk_tiles(C, softmax, begin, end - begin, run, side)


@triton.jit
def walk_terms(C: tl.constexpr, softmax, side, deal):
    """Every term in turn, of which the tiles in [begin, end) of all terms belong to the share.

    One integer goes from term to term. Two that grow alike (begin - tiles, end - tiles) were right in Triton's first
    representation. In its second one of them no longer changed (3.6.0, 3.7.1), and terms were counted twice.
    """
    rows = side.rows
    WORDS: tl.constexpr = CLASSES + 2 * BOUND * C.bounds
    all_tiles = 0
    for part in range(rows.count):
        run = run_of(C, rows, rows.terms + part * WORDS)
        all_tiles += (run.count + (C.cols - 1)) // C.cols
    begin, end = share(all_tiles, rows.split, deal.splits)
    before = 0  # tiles of the terms before
    for part in range(rows.count):
        run = run_of(C, rows, rows.terms + part * WORDS)
        tiles = (run.count + (C.cols - 1)) // C.cols
        mine = tl.maximum(begin - before, 0)
        count = tl.minimum(end - before, tiles) - mine
        softmax = walk_tiles(C, softmax, mine, count, run, side)
        before += tiles
    return softmax


@triton.jit
def walk_tiles(C: tl.constexpr, softmax, first, count, run, side):
    """`count` tiles of a run, from tile `first` on.

    Loops count from 0: Triton (3.6, 3.7) does not pipeline the loads of one that does not. It loads keys only one tile
    ahead where their addresses come of a load in the same tile. So pages are looked up a tile before.
    """
    if side.keys.page:
        tl.debug_barrier()  # else ptxas asks for queries once pages are there, and keys wait for both in turn
        pages = pages_of(C, first, run, side)
        for j in range(count):
            softmax, pages = visit(C, softmax, first + j, pages, run, side), pages_of(C, first + j + 1, run, side)
    else:
        for j in range(count):
            softmax = visit(C, softmax, first + j, None, run, side)
    return softmax


@triton.jit
def places_of(C: tl.constexpr, tile, run, side):
    """(place in the run, token, place in the cache) of a tile's keys, (cols,). Beyond the run they are those of its
    last key, which no row sees there.
    """
    x = tile * C.cols + side.operands.c
    token = run.first + run.step * tl.minimum(x, run.count - 1)
    place = token
    if side.keys.ring:
        place = token % side.keys.capacity
    return x, token, place


@triton.jit
def place_of(run, x, keys):
    """The place in the cache of one key of a run, or of its last."""
    place = run.first + run.step * tl.minimum(x, run.count - 1)
    return place % keys.capacity if keys.ring else place


@triton.jit
def pages_of(C: tl.constexpr, tile, run, side):
    """The pages of a tile's keys; where these lie in two at most, those of its first key and of its last."""
    if C.paired:
        first = place_of(run, tile * C.cols, side.keys)
        last = place_of(run, tile * C.cols + (C.cols - 1), side.keys)
        pages = Pair(
            page_of(C, side.keys, side.rows.batch, first),
            page_of(C, side.keys, side.rows.batch, last),
            column_of(C, first),
            column_of(C, last),
        )
    else:
        pages = page_of(C, side.keys, side.rows.batch, places_of(C, tile, run, side)[2])
    return pages


@triton.jit
def in_pages(C: tl.constexpr, head, pages, place):
    """Keys of a head by their places in the cache, (cols,)."""
    if C.paired:  # of each page where place 0 would be, so that no key's place within a page is needed
        first = pages.first.to(tl.int64) * head.page - (pages.first_column * C.page) * head.row
        last = pages.last.to(tl.int64) * head.page - (pages.last_column * C.page) * head.row
        at = tl.where(column_of(C, place) == pages.first_column, first, last) + place * head.row
    else:
        at = pages.to(tl.int64) * head.page + place % C.page * head.row
    return head.pointer + at


@triton.jit
def visit(C: tl.constexpr, softmax, tile, pages, run, side):
    """One tile of a run. pages: of its keys, where they lie in these, else None."""
    rows, operands = side.rows, side.operands
    x, token, place = places_of(C, tile, run, side)
    if pages is not None:
        k_at = in_pages(C, operands.k, pages, place)
        v_at = in_pages(C, operands.v, pages, place)
    else:
        k_at, v_at = operands.k.pointer + place * operands.k.row, operands.v.pointer + place * operands.v.row
    k = load_rows(C, C.d, k_at, operands.k.dim, operands.d, None)
    v = load_rows(C, C.dv, v_at, operands.v.dim, operands.dv, None)
    mine, theirs = Tokens(rows.row + rows.beside), Tokens(token)
    s, _ = score(C, products(C, operands.q, k), side.scores, mine, theirs)
    s = tl.where((x[None, :] >= run.low[:, None]) & (x[None, :] < run.high[:, None]), s, float("-inf"))
    return add_tile(C, softmax, s, side.scores, v)


# ---- results ---------------------------------------------------------------------------------------------------------
@triton.jit
def leave_share(DV: tl.constexpr, softmax, at, rows, results, columns):
    """A share's lses and means. at (rows,): which share among all of them. A share of no key has an lse only."""
    WIDTH: tl.constexpr = DV[len(DV) - 1][0] + DV[len(DV) - 1][2]
    lse = lse_2(softmax)
    tl.store(results.work + at, lse, mask=rows.valid)
    some = rows.valid & (softmax.row_sum != 0)  # NaN is something
    inverse = tl.where(some, 1.0 / softmax.row_sum, 0.0)
    for n in tl.static_range(len(DV)):
        means = (results.work + results.sums * UNIT + at * WIDTH)[:, None] + columns[n][0][None, :]
        tl.store(means, softmax.acc[n] * inverse[:, None], mask=exists(DV[n], some, columns[n][1]))


@triton.jit
def write_rows(DV: tl.constexpr, softmax, number, rows, results, columns):
    """Finished rows. number (rows,): among all rows."""
    sink, out = None, results.out
    if results.sinks is not None:
        sink = tl.load(results.sinks + rows.head, mask=rows.valid, other=0.0)
    acc, lse = finish(softmax, sink)
    tl.store(results.lse + number, lse, mask=rows.valid)
    at = out.pointer + rows.batch * out.batch + rows.head.to(tl.int64) * out.head + rows.row.to(tl.int64) * out.row
    store_rows(DV, at, out.dim, columns, acc, rows.valid)
