"""FlexAttention's BlockMask: its mask function, held against the blocks that it lists."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from weft.acsr.cells import remainder_cells, term_cells
from weft.errors import InputError, LengthError
from weft.pattern import composites
from weft.pattern import library as lib
from weft.pattern.algebra import Pattern
from weft.pattern.relation import NDBool

if TYPE_CHECKING:
    from weft.recognition import Recognized

Sizes = tuple[int, int, int, int]  # B, Hq, M, N
STRIP = 1 << 22  # blocks counted together


def recognize_blocks(mask: Any, sizes: Sizes, recognize: Callable[[Any], Recognized]) -> Recognized:
    """The pattern of a BlockMask at the sizes of a call; recognize: of its mask function.

    It is the function's where its live pairs lie in listed blocks, and all pairs of a full block are live. Masks of
    create_block_mask are so. Without a function of its own it is the blocks. Anything else is refused.
    """
    from torch.nn.attention.flex_attention import noop_mask

    from weft.recognition import Recognized

    lengths = tuple(int(x) for x in mask.seq_lengths)
    if lengths != sizes[2:]:
        raise LengthError(
            f"attention(..., mask=BlockMask of {lengths[0]} x {lengths[1]})",
            f"there are {sizes[2]} queries and {sizes[3]} keys", "make the BlockMask for these lengths",
        )  # fmt: skip
    listed, full = _read(mask, lengths)
    if mask.mask_mod is noop_mask:
        pattern = _blocks(mask.BLOCK_SIZE, listed)
        return Recognized(pattern, True, f"evaluated at {lengths}", "the blocks that it lists", *lengths)
    made = recognize(mask.mask_mod)
    wrong = _unlike(made.pattern, (listed, full), mask.BLOCK_SIZE, lengths)
    if wrong:
        raise InputError(
            "attention(..., mask=BlockMask)", f"its blocks are not those of its mask_mod: {wrong}",
            "make it by create_block_mask(mask_mod, ...), or say which is meant: pass block_mask.mask_mod, or "
            f"weft.blocks({tuple(mask.BLOCK_SIZE)}, pairs of blocks)",
        )  # fmt: skip
    return replace(made, why=f"{made.why}; its blocks are held against it")


def computed_by_kernels(mask: Any, recognize: Callable[[Any], Pattern]) -> Pattern:
    """What FlexAttention's kernels compute of a BlockMask: mask_mod inside of listed blocks, and full blocks whole.

    recognize: the pattern of a mask function. It alone is the answer where it agrees with the blocks.
    """
    from torch.nn.attention.flex_attention import noop_mask

    lengths = tuple(int(x) for x in mask.seq_lengths)
    listed, full = _read(mask, lengths)
    if mask.mask_mod is noop_mask:
        return _blocks(mask.BLOCK_SIZE, listed)
    made = recognize(mask.mask_mod)
    if not _unlike(made, (listed, full), mask.BLOCK_SIZE, lengths):
        return made
    made = made & _blocks(mask.BLOCK_SIZE, listed)
    return made | _blocks(mask.BLOCK_SIZE, full) if full.any() else made


def kinds_of_blocks(pattern: Pattern, lengths: tuple[int, int], size: tuple[int, int]) -> tuple[NDBool, NDBool]:
    """(partial, full) blocks of a pattern, each (B or 1, H or 1, blocks of queries, blocks of keys).

    As create_block_mask has it, a block that reaches beyond the last token is never full.
    """
    batch, heads = (of or 1 for of in pattern.extent())
    edges = [_edges(length, step) for length, step in zip(lengths, size, strict=True)]
    shape = (batch, heads, *(x.size - 1 for x in edges))
    live = np.stack([_pairs(pattern, lengths, at, (edges[0], edges[1])) for at in np.ndindex(batch, heads)])
    live = live.reshape(shape)
    full = live == size[0] * size[1]
    return (live > 0) & ~full, full


def block_mask_of(pattern: Pattern, m: int, n: int, *, block_size: Any, device: Any) -> Any:
    """See `Pattern.to_block_mask`."""
    from torch.nn.attention.flex_attention import BlockMask

    from weft.torch.mask_mod import mask_mod_of

    size = (block_size, block_size) if isinstance(block_size, int) else tuple(block_size)
    device = torch.get_default_device() if device is None else torch.device(device)
    partial, full = (torch.from_numpy(x).to(device) for x in kinds_of_blocks(pattern, (m, n), size))
    return BlockMask.from_kv_blocks(
        *ordered(partial), *ordered(full), BLOCK_SIZE=size, mask_mod=mask_mod_of(pattern, m, n, device),
        seq_lengths=(m, n),
    )  # fmt: skip


def ordered(chosen: Any) -> tuple[Any, Any]:
    """(..., rows, columns) booleans -> how many are chosen in each row, and the columns with those chosen first."""
    columns = torch.argsort(chosen.to(torch.int8), dim=-1, descending=True, stable=True)
    return chosen.sum(-1, dtype=torch.int32), columns.to(torch.int32)


def _read(mask: Any, lengths: tuple[int, ...]) -> tuple[NDBool, NDBool]:
    """(listed or full, full) blocks of a BlockMask."""
    shape = tuple(-(-length // int(step)) for length, step in zip(lengths, mask.BLOCK_SIZE, strict=True))
    some = _listed(mask.kv_num_blocks, mask.kv_indices, shape)
    if mask.full_kv_num_blocks is None:
        return some, np.zeros_like(some)
    full = _listed(mask.full_kv_num_blocks, mask.full_kv_indices, shape)
    return some | full, full


def _listed(counts: Any, indices: Any, shape: tuple[int, ...]) -> NDBool:
    """Which blocks are listed: (B or 1, H or 1, blocks of queries, blocks of keys); shape: the last two."""
    counts, indices = (x.detach().cpu().numpy() for x in (counts, indices))
    if indices.shape[-2] < shape[0]:
        raise LengthError(
            f"a BlockMask with {indices.shape[-2]} rows of blocks", f"its seq_lengths need {shape[0]} of them",
            "set block_mask.seq_lengths = (queries, keys) of the rows that are left",
        )  # fmt: skip
    used = np.arange(indices.shape[-1]) < counts[..., None]
    listed = np.zeros((*indices.shape[:-1], max(shape[1], indices[used].max(initial=-1) + 1)), np.bool_)
    at = np.nonzero(used)
    listed[(*at[:-1], indices[used])] = True
    return listed[..., : shape[0], : shape[1]]


def _blocks(size: Any, listed: NDBool) -> Pattern:
    """Blocks as a pattern."""
    rows = [
        [lib.blocks(tuple(map(int, size)), np.argwhere(head).tolist()) for head in row]  # a list of (row, column)
        for row in listed
    ]
    heads = [row[0] if len(row) == 1 else composites.per_head(row) for row in rows]
    return heads[0] if len(heads) == 1 else composites.per_batch(heads)


def _unlike(pattern: Pattern, blocks: tuple[NDBool, NDBool], size: Any, lengths: tuple[int, ...]) -> str:
    """Where a pattern has pairs in no listed block or misses some of a full one, "" if nowhere. blocks: both kinds."""
    listed, full = blocks
    extent = [of or 1 for of in pattern.extent()]
    counts = [max(a, b) for a, b in zip(extent, listed.shape[:2], strict=True)]
    queries, keys = (_edges(length, int(step)) for length, step in zip(lengths, size, strict=True))
    area = np.diff(queries)[:, None] * np.diff(keys)
    for b, h in np.ndindex(*counts):
        at = tuple(min(i, n - 1) for i, n in zip((b, h), listed.shape[:2], strict=True))
        pairs = _pairs(pattern, lengths, (b % extent[0], h % extent[1]), (queries, keys))
        outside, missing = (pairs > 0) & ~listed[at], full[at] & (pairs < area)
        for wrong, says in ((outside, "has pairs in"), (missing, "misses pairs of")):
            if wrong.any():
                row, column = np.argwhere(wrong)[0].tolist()
                which = "which is not listed" if says == "has pairs in" else "which is listed as full"
                return f"it {says} block ({row}, {column}), {which}"
    return ""


def _edges(length: int, step: int) -> Any:
    """First tokens of the blocks, and the end."""
    return np.append(np.arange(0, length, step, dtype=np.int64), length)


def _pairs(pattern: Pattern, lengths: Any, at: tuple[int, int], edges: tuple[Any, Any]) -> Any:
    """Live pairs in each block."""
    acsr = pattern.acsr(lengths[0], lengths[1], *at)
    queries, keys = edges
    found = np.zeros((queries.size - 1, keys.size - 1), np.int64)
    some = max(1, STRIP // keys.size)
    for first in range(0, queries.size - 1, some):
        strip = queries[first : first + some + 1]
        for term in acsr.terms:
            found[first : first + some] += term_cells(term, strip, keys)
    if len(acsr.remainder):
        found += remainder_cells(acsr.remainder, queries, keys)
    return found
