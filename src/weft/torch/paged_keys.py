"""Keys and values in pages, as servers keep them: what a block table may be, and pages gathered on the CPU.

`decode_attention` and `varlen_attention` take such keys; call: which of them is asked.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from weft.errors import InputError
from weft.pattern.bounds import Ints
from weft.planning.problem import Problem
from weft.torch.inputs import problem_of

PAGE_SIZES = range(16, 257)  # tokens of a page
Caches = tuple[Tensor, Tensor, Tensor]
DECODE = "decode_attention"


def as_rows(caches: Caches, call: str = DECODE) -> Caches:
    """q, and one page of the keys and values for every batch row: tensors that `check_tensors` knows.

    Raises InputError where the caches cannot be pages.
    """
    q, k, v = caches
    for name, x in (("k_cache", k), ("v_cache", v)):
        if not isinstance(x, Tensor) or x.dim() != 4 or not x.shape[0]:
            shape = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            _wrong(call, f"{name} is {shape}", f"pass {name} as (pages, Hkv, page_size, D), with one page or more")
        if x.shape[2] not in PAGE_SIZES:
            cure = f"pass pages of 16 to 256 tokens; of a cache (pages, page_size, Hkv, D) pass {name}.transpose(1, 2)"
            _wrong(call, f"{name} is {tuple(x.shape)}, so that a page has {x.shape[2]} tokens", cure)
    if k.shape[0] != v.shape[0]:
        _wrong(call, f"k_cache has {k.shape[0]} pages, v_cache {v.shape[0]}", "give both the same pages")
    batch = q.shape[0] if isinstance(q, Tensor) and q.dim() else 1
    return (q, *(x[:1].expand(batch, -1, -1, -1) for x in (k, v)))


def check_table(table: Any, rows: int, device: torch.device, call: str = DECODE) -> None:
    """Raise InputError unless the block table is (rows, pages of a row)."""
    cure = f"pass block_table as int32 of shape ({rows}, pages of a row), its rows contiguous, on {device}"
    if not isinstance(table, Tensor) or table.dtype != torch.int32:
        _wrong(call, f"block_table is {table.dtype if isinstance(table, Tensor) else type(table).__name__}", cure)
    if table.dim() != 2 or table.shape[0] != rows or not table.shape[1] or table.stride(1) != 1:
        _wrong(call, f"block_table has shape {tuple(table.shape)} and strides {table.stride()}", cure)
    if table.device != device:
        _wrong(call, f"block_table is on {table.device}", cure)


def problem_in_pages(caches: Caches, room: int) -> Problem:
    """The problem of checked caches; room: the tokens that a row of the block table has room for, its keys."""
    return replace(problem_of(*as_rows(caches)), n=room)


class Pages:
    """One batch row of a block table on the CPU. page: tokens of each; pages: that there are."""

    def __init__(self, table: Tensor, row: int, page: int, pages: int, call: str = DECODE) -> None:
        self.numbers, self.row, self.page, self.pages, self.call = table[row].numpy(), row, page, pages, call

    def check(self, keys: int) -> None:
        """Raise InputError where the row has room for fewer keys."""
        if keys > self.room:
            cure = f"pass at most {self.room} keys, or a table with more pages"
            _wrong(
                self.call, f"row {self.row} has {keys} keys, and its {self.numbers.size} pages hold {self.room}", cure
            )

    @property
    def room(self) -> int:
        """Tokens that its pages hold."""
        return self.numbers.size * self.page

    def of(self, place: Ints) -> tuple[Tensor, Tensor]:
        """(page, place in it) of each place. Raises InputError where one has no page."""
        found = self.numbers[place // self.page]
        wrong = (found < 0) | (found >= self.pages)
        if wrong.any():
            at = int(place[wrong][0]) // self.page
            said = f"block_table[{self.row}, {at}] is {self.numbers[at]}, and holds keys that a query sees"
            _wrong(self.call, said, f"pass numbers of pages from 0 to {self.pages - 1} there")
        return torch.from_numpy(found).long(), torch.from_numpy(place % self.page)


def _wrong(call: str, wrong: str, cure: str) -> None:
    raise InputError(f"{call}(..., block_table=...)", wrong, cure)
