"""Kernels whose warp groups specialise, on Hopper: forward, dQ, dK and dV. Programs take blocks of tiles in turn.

Each group has GROUP rows of a block. What a forward reads beside its item (`tables.consumer_ranges`) is checked against
the bounds of rows. Tiles that a group passes over have no live pair, and tiles that it does not mask are full.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from weft.kernels.gpu.oracle import bounds, grids
from weft.kernels.gpu.oracle.backward import row_numbers, subtracted
from weft.kernels.gpu.oracle.forward import numbers_of
from weft.kernels.gpu.oracle.laws import law
from weft.kernels.gpu.oracle.memory import Bools, Call, DescriptorView, Ints, Reals
from weft.kernels.gpu.oracle.numbers import SoftMaximum
from weft.kernels.gpu.oracle.programs import member_at, place_of
from weft.kernels.gpu.oracle.tables import Owner
from weft.kernels.gpu.tables.consumer_ranges import GROUP, RANGE
from weft.kernels.gpu.tables.pack import PART, axis_words

TERM = PART + axis_words(1)
RUN = 4  # integers of an item for each term


class Range(NamedTuple):
    """Tiles of a run that a group visits, from begin to before end; bounds cut those before below and from beyond on.

    folds: the first and the last tile are one tile of weights.
    """

    begin: int
    end: int
    below: int
    beyond: int
    folds: int = 0


class Block(NamedTuple):
    """A tile of rows of one head. mine: the integers of its item; start, height: its first row, and how many."""

    owner: Owner
    words: Ints
    parts_at: int
    mine: Ints
    start: int
    height: int


class Walk(NamedTuple):
    """One group's rows against one run of so many columns, in tiles; live low <= column < high of each row."""

    tile: int
    length: int
    low: Ints
    high: Ints
    tokens: Ints

    def mask(self, number: int) -> Bools:
        """The live pairs of a tile of columns."""
        c = number * self.tile + np.arange(self.tile)
        found: Bools = (c >= self.low[:, None]) & (c < self.high[:, None])
        return found

    @property
    def tiles(self) -> int:
        """Tiles of the run."""
        return -(-self.length // self.tile)


def blocks(call: Call) -> Iterator[Block]:
    """Every block, program by program."""
    words, at, count = call.table(), call.integer("blocks_at"), call.integer("blocks")
    if call.spec.counted:
        law(0 <= words[at - 1] <= count, "there are more blocks than room for them")
        count = int(words[at - 1])
    place, programs = place_of(call), call.grid[0]
    law(0 < at and at + 2 * count <= words.size, "blocks lie beyond the tables")
    every = words[at : at + 2 * count].reshape(-1, 2)
    law(len(np.unique(every, axis=0)) == count, "a block is taken twice")
    if call.spec.claims:
        _claimed(call, count)
    for program in range(programs):
        for number in range(program, count, programs):
            item, member = (int(x) for x in every[number])
            found = member_at(call, member)
            law(0 <= item < found.items, f"item {item} of {found.items} is a block")
            mine = words[place.items_at + place.record * item :][: place.record]
            yield Block(found.owner, words, place.parts_at, mine, int(mine[0]), int(mine[1]))


def _claimed(call: Call, count: int) -> None:
    """Programs claim a block where they had one, and one more that is not there."""
    counter, here = call.flat("Claimed"), np.zeros(1, np.int64)
    law(int(counter.load(here)[0]) == 0, "blocks are claimed from a counter that is not 0")
    counter.store(np.array([float(count)]), here)


def _rows(block: Block, group: int) -> Ints:
    """Coordinates of a group's rows; those beyond the block's last one are that."""
    return block.start + int(block.words[3]) * np.minimum(group * GROUP + np.arange(GROUP), block.height - 1)


def _walk(call: Call, block: Block, group: int, term: int) -> Walk:
    """A group's bounds in the run of a term."""
    words, here, tile = block.words, block.parts_at + TERM * term, call.spec.cols
    first, count = (int(x) for x in block.mine[2 + RUN * term :][:2])
    if call.spec.row_bounds:
        low, high = _bounds_of_rows(call, block, group, term)
    else:
        low, high = bounds.lines(words, here + PART, _rows(block, group))
        low, high = (bounds.positions(words, here + PART, x, first) for x in (low, high))
    tokens = int(words[here]) + first + int(words[here + PART]) * np.arange(-(-count // tile) * tile)
    if not call.spec.rank:  # a list of tiles, which is where the run says that its first place is
        tokens = (tile * words[_place(call, block, 1)[0] :][: count // tile, None] + np.arange(tile)).reshape(-1)
    return Walk(tile, count, low, np.minimum(high, count), tokens)


def _bounds_of_rows(call: Call, block: Block, group: int, term: int) -> tuple[Ints, Ints]:
    """The bounds of a group's rows in the run of a term, as an item has them; those of no row are empty."""
    spec = call.spec
    at = _range_at(call, 0, spec.terms) + 2 * spec.rows * term
    low, high = block.mine[at:][: 2 * spec.rows].astype(np.int64).reshape(2, -1, GROUP)[:, group]
    law(not (high - low)[max(block.height - group * GROUP, 0) :].any(), "a row that does not exist sees something")
    return low, high


def _check(walk: Walk, found: Range, exists: Ints, what: str) -> None:
    """Tiles that are passed over have no live pair. exists: rows that there are."""
    low, high = walk.low[exists], walk.high[exists]
    live = low < high
    law(0 <= found.begin <= found.end <= walk.tiles or not found.end, f"{what}: tiles beyond the run")
    inside = (low >= walk.tile * found.begin) & (high <= walk.tile * found.end)
    law(inside[live].all(), f"{what}: a tile that a group passes over has a live pair")


# ---- forward ---------------------------------------------------------------------------------------------------------
def forward(call: Call) -> None:
    """Out and Lse of one or two terms, or of one on a grid. Tensor descriptors read their tiles."""
    if call.spec.boxes:
        for block in blocks(call):
            grids.attended(call, grids.Tables(block.words, block.mine, block.parts_at), block.owner)
        return
    near, far = ("K_near", "V_near"), ("K_far", "V_far")
    terms = [tuple(call.box(name) for name in names) for names in (near, far)[: call.spec.terms]]
    sinks = call.flat("Sinks") if call.spec.sinks else None
    for block in blocks(call):
        _check_size(call, block)
        for group in range(-(-block.height // GROUP)):
            sums, tokens = _attended(call, block, group, terms)
            out, lse = sums.finish(None if sinks is None else float(sinks.load(block.owner.head)))
            _write_rows(call, block, group, tokens, (out, lse))


def _check_size(call: Call, block: Block) -> None:
    """An item has the integers that groups read, and no others."""
    of_rows = 2 * call.spec.rows * call.spec.terms * call.spec.row_bounds
    law(
        block.mine.size == _range_at(call, 0, call.spec.terms) + of_rows,
        "an item has other integers than its groups read",
    )


def _range_at(call: Call, group: int, term: int) -> int:
    """Where an item has the range of a group in the run of a term."""
    terms, groups = call.spec.terms, call.spec.groups
    return 2 + RUN * terms + 2 * (1 + terms) + RANGE * (groups * term + group)


def _place(call: Call, block: Block, side: int) -> tuple[int, int]:
    """(place, lane) where the boxes of queries begin, or those of a term's keys (from side 1 on)."""
    place, lane = block.mine[2 + RUN * call.spec.terms + 2 * side :][:2]
    return int(place), int(lane)


def _tile_at(call: Call, block: Block, walk: Walk, place: int, j: int) -> int:
    """The place of the box of tile j of a run that begins at a place, or whose list is there."""
    return place + j * walk.tile if call.spec.rank else walk.tile * int(block.words[place + j])


def _boxed(box: DescriptorView, place: tuple[int, int], tokens: Ints, what: str) -> tuple[int, int]:
    """The place, once the descriptor has there the tokens that tables name."""
    known = np.maximum(tokens, -1)  # before token 0 there is none
    law(np.array_equal(box.tokens(*place)[: tokens.size], known), f"a box of {what} is of other tokens")
    return place


def _attended(
    call: Call, block: Block, group: int, terms: list[tuple[DescriptorView, ...]]
) -> tuple[SoftMaximum, Ints]:
    """(sums of a group's rows, their tokens)"""
    batch, kv_head, head, _ = block.owner
    tokens = int(block.words[0]) + _rows(block, group)[: block.height - group * GROUP]
    place, lane = _place(call, block, 0)
    at = _boxed(call.box("Q_near"), (place + group * GROUP, lane), tokens, "queries")
    q, sums = call.box("Q_near").load(batch, head, *at), SoftMaximum(GROUP, call.spec.dv)
    for term, (k_box, v_box) in enumerate(terms):
        walk, found = _walk(call, block, group, term), _range(call, block, group, term)
        _check(walk, found, np.arange(tokens.size), f"group {group} of a forward")
        place, lane = _place(call, block, 1 + term)
        folds = found.folds if call.spec.short and term == 0 else 0
        pieces = {}
        for j in range(found.begin, found.end):
            keys = walk.tokens[j * walk.tile : min(walk.length, j * walk.tile + walk.tile)]
            at = _boxed(k_box, (_tile_at(call, block, walk, place, j), lane), keys, "keys")
            pieces[j] = q @ k_box.load(batch, kv_head, *at).T * call.real("scale"), v_box.load(batch, kv_head, *at)
        if folds:
            law(found.end - found.begin >= 2, "one tile folds with itself")
            _add_folded(sums, walk, found, (pieces.pop(found.begin), pieces.pop(found.end - 1)))
        for j, (s, v) in pieces.items():
            cut = j < found.below or j >= found.beyond
            law(cut or walk.mask(j)[: tokens.size].all(), "a tile that is not masked is not full")
            sums.add(np.where(walk.mask(j), s, -np.inf) if cut else s, v)
    return sums, tokens


def _range(call: Call, block: Block, group: int, term: int) -> Range:
    return Range(*(int(x) for x in block.mine[_range_at(call, group, term) :][:RANGE]))


def _add_folded(sums: SoftMaximum, walk: Walk, found: Range, pieces: tuple[tuple[Reals, Reals], ...]) -> None:
    """A run's first and last tile as one: of the first what is right of the lower bound, of the last the rest."""
    (s, v), (s_last, v_last) = pieces
    c = np.arange(walk.tile)
    first = c >= (walk.low - found.begin * walk.tile)[:, None]
    other = c < (walk.high - (found.end - 1) * walk.tile)[:, None]
    law(np.array_equal(first, ~other), "two tiles fold whose live columns are not each other's rest")
    both = np.concatenate([np.where(first, s, -np.inf), np.where(first, -np.inf, s_last)], axis=1)
    sums.add(both, np.concatenate([v, v_last]))


def _write_rows(call: Call, block: Block, group: int, tokens: Ints, results: tuple[Reals, Reals]) -> None:
    """Out by a descriptor where the kernel has one and all rows of the group exist, else by rows; Lse by rows."""
    (out, lse), (batch, _, head, _) = results, block.owner
    if call.spec.boxed and tokens.size == GROUP:
        place, lane = _place(call, block, 0)
        at = _boxed(call.box("Out_near"), (place + group * GROUP, lane), tokens, "out")
        call.box("Out_near").store(out, batch, head, *at)
    else:
        call.tensor("Out").store(out[: tokens.size], batch, head, tokens)
    call.flat("Lse").store(lse[: tokens.size], numbers_of(call, batch, head, tokens))


# ---- dQ --------------------------------------------------------------------------------------------------------------
def query_gradient(call: Call) -> None:
    """DQ of one term, by boxes, and what its queries' scores subtract. Every group walks every tile of the run."""
    for block in blocks(call):
        if call.spec.boxes:
            grids.query_gradient(call, grids.Tables(block.words, block.mine, block.parts_at), block.owner)
            continue
        _check_size(call, block)
        batch, kv_head, head, _ = block.owner
        own, (place, lane) = _place(call, block, 0), _place(call, block, 1)
        for group in range(-(-block.height // GROUP)):
            walk, found = _walk(call, block, group, 0), _range(call, block, group, 0)
            exists = np.arange(min(GROUP, block.height - group * GROUP))
            tokens = int(block.words[0]) + _rows(block, group)[exists]
            at = _boxed(call.box("Q_box"), (own[0] + group * GROUP, own[1]), tokens, "queries")
            q, do = (call.box(name).load(batch, head, *at)[: tokens.size] for name in ("Q_box", "DOut_box"))
            lse, delta = (x[:, None] for x in row_numbers(call, block.owner, tokens))
            dq = np.zeros_like(q)
            for j in range(walk.tiles):
                _check_cut(call, walk, found, exists, j)
                keys = walk.tokens[j * walk.tile : min(walk.length, j * walk.tile + walk.tile)]
                at = _boxed(call.box("K_box"), (place + j * walk.tile, lane), keys, "keys")
                k, v = (call.box(name).load(batch, kv_head, *at)[: keys.size] for name in ("K_box", "V_box"))
                mask = walk.mask(j)[exists, : keys.size]
                p = np.exp(np.where(mask, q @ k.T * call.real("scale") - lse, -np.inf))
                dq += (p * np.where(mask, do @ v.T - delta, 0.0)) @ k
            call.tensor("DQ").store(dq * call.real("scale"), batch, head, tokens)


# ---- dK and dV -------------------------------------------------------------------------------------------------------
def key_gradients(call: Call) -> None:
    """DK and DV of one term, or one of them; where all gradients come of one walk, what DQ is added besides."""
    for block in blocks(call):
        if call.spec.boxes:
            grids.gradients(call, grids.Tables(block.words, block.mine, block.parts_at), block.owner)
            continue
        if call.spec.with_dq or call.spec.makes != "both":
            _gradients_by_boxes(call, block)
            continue
        law(block.owner.heads == 1, "a kernel of one head meets a group of heads")
        for group in range(-(-block.height // GROUP)):
            walk = _walk(call, block, group, 0)
            found = _range_of_lines(walk, block.height - group * GROUP)
            exists = np.arange(min(GROUP, block.height - group * GROUP))
            _check(walk, found, exists, f"group {group} of keys")
            _key_gradients(call, block, walk, found, _rows(block, group)[exists])


def _range_of_lines(walk: Walk, exist: int) -> Range:
    """What a group computes from its first and its last row: lines rise or fall."""
    low, high = walk.low[[0, -1]], walk.high[[0, -1]]
    end = min(-(-int(high.max()) // walk.tile), walk.tiles) if exist > 0 else 0
    begin = min(int(low.min()) // walk.tile, end)
    return Range(begin, end, -(-int(low.max()) // walk.tile), int(high.min()) // walk.tile)


def _key_gradients(call: Call, block: Block, walk: Walk, found: Range, rows: Ints) -> None:
    batch, kv_head, head, _ = block.owner
    scale, keys = call.real("scale"), int(block.words[0]) + rows
    k, v = (call.tensor(name).load(batch, kv_head, keys) for name in ("K", "V"))
    dk, dv = np.zeros_like(k), np.zeros_like(v)
    for j in range(found.begin, found.end):
        tokens = walk.tokens[j * walk.tile : min(walk.length, j * walk.tile + walk.tile)]
        q, do = (call.tensor(name).load(batch, head, tokens) for name in ("Q", "DOut"))
        lse, delta = subtracted(call, numbers_of(call, batch, head, tokens, "their_length"))
        p, dp = np.exp(k @ q.T * scale - lse), v @ do.T - delta
        mask = walk.mask(j)[: keys.size, : tokens.size]
        if j < found.below or j >= found.beyond:
            p, dp = np.where(mask, p, 0.0), np.where(mask, dp, 0.0)
        else:
            law(tokens.size == walk.tile and mask.all(), "a tile that is not masked is not full")
        dv += p @ do
        dk += (p * dp) @ q
    call.tensor("DK").store(dk * scale, batch, kv_head, keys)
    call.tensor("DV").store(dv, batch, kv_head, keys)


# ---- by boxes --------------------------------------------------------------------------------------------------------
def _gradients_by_boxes(call: Call, block: Block) -> None:
    """DK and DV of a block's keys, or one of the two, of all heads that share them, and what they add to DQ. Every
    group walks every tile of the run.
    """
    _check_size(call, block)
    batch, kv_head, head, share = block.owner
    places = [_place(call, block, side) for side in (0, 1)]
    for group in range(-(-block.height // GROUP)):
        walk, found = _walk(call, block, group, 0), _range(call, block, group, 0)
        exists = np.arange(min(GROUP, block.height - group * GROUP))
        keys = int(block.words[0]) + _rows(block, group)[exists]
        at = _boxed(call.box("K_box"), (places[0][0] + group * GROUP, places[0][1]), keys, "keys")
        k, v = (call.box(name).load(batch, kv_head, *at)[: keys.size] for name in ("K_box", "V_box"))
        dk, dv = np.zeros_like(k), np.zeros_like(v)
        for h in range(head, head + share):
            for j in range(walk.tiles):
                _check_cut(call, walk, found, exists, j)
                at = _tile_at(call, block, walk, places[1][0], j), places[1][1]
                more = _tile_gradients(call, (batch, h), at, walk, j, (k, v))
                dk, dv = dk + more[0], dv + more[1]
        for name, half, made in (("DK", "dk", dk * call.real("scale")), ("DV", "dv", dv)):
            if call.spec.makes in ("both", half):
                call.tensor(name).store(made, batch, kv_head, keys)


def _check_cut(call: Call, walk: Walk, found: Range, exists: Ints, j: int) -> None:
    """A tile that is not masked is full. Where DQ is added to, it has all rows of the group: others would add too."""
    if found.below <= j < found.beyond:
        whole = exists.size == GROUP or not call.spec.with_dq
        law(whole and walk.mask(j)[exists].all(), "a tile that is not masked is not full")


def _tile_gradients(
    call: Call, heads: tuple[int, int], place: tuple[int, int], walk: Walk, j: int, own: tuple[Reals, Reals]
) -> tuple[Reals, Reals]:
    """(dK, dV) of some keys with tile j of a run of queries, whose DQ may be added to."""
    (batch, head), (k, v) = heads, own
    tokens = walk.tokens[j * walk.tile : min(walk.length, j * walk.tile + walk.tile)]
    at = _boxed(call.box("Q_box"), place, tokens, "queries")
    q, do = (call.box(name).load(batch, head, *at)[: tokens.size] for name in ("Q_box", "DOut_box"))
    lse, delta = subtracted(call, numbers_of(call, batch, head, tokens, "their_length"))
    mask = walk.mask(j)[: len(k), : tokens.size]
    p = np.where(mask, np.exp(np.where(mask, k @ q.T * call.real("scale") - lse, -np.inf)), 0.0)
    ds = p * np.where(mask, v @ do.T - delta, 0.0)
    if call.spec.with_dq:
        dq = np.zeros((walk.tile, k.shape[1]))
        dq[: tokens.size] = ds.T @ k * (call.real("scale") if call.spec.stats32 else 1.0)
        call.box("DQ_box").add(dq, batch, head, *at)
    return ds @ q, p @ do
