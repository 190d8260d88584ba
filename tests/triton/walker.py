"""The tables of a wave read back in numpy, just as a kernel reads them: what it visits, masks and writes."""

from dataclasses import dataclass

import numpy as np

from weft.kernels.gpu.oracle.tables import Form, Member, Owner, Tables, member_of
from weft.kernels.gpu.tables.pack import HEAD


@dataclass
class Visit:
    """One box of columns of one tile of rows: tokens, and mask (rows, cols), True where a pair is computed."""

    rows: np.ndarray
    cols: np.ndarray
    mask: np.ndarray


@dataclass
class Tile:
    """One tile of one head. owner: batch row, key/value head, (first) query head, number of query heads."""

    owner: tuple
    rows: np.ndarray
    visits: list


def walk_wave(wave, lengths):
    """Every tile of every member of a wave. lengths: of the side of rows and of the side of columns."""
    for number in range(wave.members):
        member = _member(wave, number)
        tables = Tables(member.words, form_of(wave), member.place)
        for item in range(member.items):
            tile = tables.tile(item, lengths)
            visits = [Visit(tile.rows, one.cols, one.live) for part in tile.parts for one in part.visits]
            yield Tile(tuple(member.owner), tile.rows, visits)


def form_of(wave):
    """What the code of a wave's kernel says of its tables; terms are walked one after the other."""
    rank, tiling, formula, listed, _, ordered, *_ = wave.kind
    more, packed = wave.more and not wave.several, wave.place is None
    return Form(
        rank, tiling.rows, tiling.cols, formula, wave.lines, listed, wave.several, more, 1, packed, ordered=ordered
    )


def _member(wave, number):
    """A member as kernels read it, or where nothing is packed, as they are told."""
    words, at = wave.words.astype(np.int64), wave.heads_at + HEAD * number
    if wave.place is None:
        return member_of(words, at)
    return Member(Owner(*(int(x) for x in words[at : at + 4])), words, wave.items, wave.place)
