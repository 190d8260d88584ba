"""The columns of a tile: which exist, where they lie, and what tensors hold there.

C is a `weft.kernels.gpu.tile.config.Config`, a visit a `weft.kernels.gpu.tile.walk.Visit`.
"""

from collections import namedtuple

import triton
import triton.language as tl

from weft.kernels.gpu.ops.loads import reach, read, tile_at, token_at

# A tile of a walk, and its columns, all (cols,); () for what a kind of tile has not. at: the tile's first token. there:
# which columns exist. read: which columns are read. near: of columns their place in the tile, or that of the last
# column that exists. token: of each its token, where tokens are listed or ALiBi asks for them; of keys in pages where
# its row lies. coordinate: of listed tokens.
Tile = namedtuple("Tile", "visit at there read near token coordinate")


@triton.jit
def locate(C: tl.constexpr, KIND: tl.constexpr, visit):
    """The columns of a tile."""
    if C.rank == 0:
        tile = _locate_block(C, visit)
    elif C.rank == 1:
        tile = _locate_on_line(C, KIND, visit)
    else:
        tile = _locate_box(C, visit)
    return tile


@triton.jit
def _locate_block(C: tl.constexpr, visit):
    blocks, column = visit.part, visit.part.column
    at = tl.load(blocks.columns + visit.j) * C.cols
    there = column < blocks.end - at
    return Tile(visit, at, there, there & (column >= blocks.begin - at), (), at + column, ())


@triton.jit
def _locate_on_line(C: tl.constexpr, KIND: tl.constexpr, visit):
    part, line, j, column = visit.part, visit.line, visit.j, visit.part.column
    begin = j * C.cols
    count, base = line.count, visit.base
    if C.more:  # tiles of other terms follow those of the first
        before = line.full if C.apart else line.boxes
        if KIND == "either":
            count = tl.where(j < line.boxes, count, (j + 1) * C.cols)
        if KIND != "edge":
            base = tl.where(j < before, base, part.more_at)
    near = tl.minimum(column, count - 1 - begin)
    there = column < count - begin
    read = there
    if C.neighbours:  # what lies before a run may be anything
        near, read = tl.maximum(near, line.skipped - begin), there & (column >= line.skipped - begin)
    at = base + j * line.pace
    token, coordinate = at + (column * line.step if C.terms > 1 else part.token), column
    if C.listed:
        lists = part.lists
        place = line.first + line.step * (begin + column)
        coordinate = place
        if lists.keys_at != 0:
            coordinate = tl.load(lists.tables + lists.keys_at + place, mask=there, other=0)
        token = tl.load(lists.part) + coordinate
    if C.ordered:  # beyond the last column that one's token once more
        token = tl.load(part.lists.tables + part.lists.keys_at + (line.first + line.step * (begin + near)))
    if C.paged:
        inside = line.first + begin + near
        token = tl.load(part.lists.tables + part.lists.keys_at + inside // C.paged) + inside % C.paged
    return Tile(visit, at, there, read, near, token, coordinate)


@triton.jit
def _locate_box(C: tl.constexpr, visit):
    axes, j, part = visit.part.runs, visit.j, visit.part
    there = axes[0].column < axes[0].count - (j[0] << axes[0].log)
    at = part.bases[0] + j[0] * axes[0].pace
    for a in tl.static_range(1, C.rank):
        there &= axes[a].column < axes[a].count - (j[a] << axes[a].log)
        at += j[a] * axes[a].pace
    return Tile(visit, at, there, there, (), at + part.token, ())


@triton.jit
def load(C: tl.constexpr, KIND: tl.constexpr, chunks, walked, tile):
    """The rows (cols, d) of a tensor (`weft.kernels.gpu.ops.loads.Walked`) that are the columns of a tile."""
    where, inside = walked.pointer, walked.inside
    if C.gathered or C.paged:
        inside = token_at(C, walked.tensor, tile.token)[:, None]
    else:
        where += tile_at(C, walked.tensor, tile.at)
        if C.clamps and KIND != "full":
            inside = reach(C, walked.tensor, tile.near, tile.visit.line.step)[:, None]
    found = ()
    for n in tl.static_range(len(chunks)):
        column, live = walked.columns[n]
        offsets = inside + (column[None, :] if C.aligned else column[None, :] * walked.tensor.dim)
        rows = None
        if (C.listed or not (KIND == "full" or C.whole or C.ordered)) and not (C.clamps and KIND != "full"):
            rows = tile.read[:, None]
        found += (read(C, chunks[n], where + offsets, rows, live),)
    return found
