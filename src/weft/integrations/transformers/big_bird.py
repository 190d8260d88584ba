"""BigBird's block-sparse attention on weft: three blocks around a query's, the first and last block, random ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import log
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention

import weft
from weft.caching import cached
from weft.errors import UnsupportedError
from weft.integrations.transformers.masks import unpadded
from weft.pattern.algebra import Pattern
from weft.torch.attention import attention
from weft.torch.merging import merge

Blocks = tuple[tuple[tuple[int, ...], ...], ...]  # of each head and each block of queries but the first and last


class SparseBigBirdAttention(BigBirdBlockSparseAttention):
    """`BigBirdBlockSparseAttention` with weft in place of gathered blocks; parameters and random blocks are the same.

    Outside of training transformers takes block 0 for every random one, so that its keys count several times. So they
    do here.
    """

    def bigbird_block_sparse_attention(  # noqa: PLR0913 - as transformers calls it
        self, q: Tensor, k: Tensor, v: Tensor, band_mask: Tensor, from_mask: Tensor, to_mask: Tensor,
        *blocked: Any, seed: int | None = None, **plan: Any,
    ) -> tuple[Tensor, None]:  # fmt: skip
        """(out (B, S, H, D), None) of q, k, v (B, H, S, D); masks are 1 for tokens, and 0 for padding."""
        pattern, again, times = self._patterns(to_mask.reshape(-1, q.shape[2]) > 0, seed)
        out, lse = attention(q, k, v, pattern, return_lse=True)
        if again is not None:
            more, more_lse = attention(q, k, v, again, return_lse=True)
            out, _ = merge([out, more], [lse, more_lse + log(times)])
        return (out * from_mask).transpose(1, 2), None

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # numpy draws, and Dynamo would trace it
    def _patterns(self, kept: Tensor, seed: int | None) -> tuple[Pattern, Pattern | None, int]:
        """As `_pattern`, without padding. kept (B, S): whether a token is none."""
        length, block = kept.shape[1], self.block_size
        pattern, again, times = _pattern(block, length // block, self._random_blocks(length, seed))
        tokens = unpadded(kept, 0, length)
        if tokens is None:
            return pattern, again, times
        return pattern & tokens, None if again is None else again & tokens, times

    def _random_blocks(self, length: int, seed: int | None) -> Blocks:
        """As transformers draws them, by its own functions."""
        block, count, heads = self.block_size, self.num_random_blocks, self.num_attention_heads
        if self.training:
            np.random.seed(seed)
        if length in (1024, 3072, 4096):  # plans of the paper
            sizes = self.max_seqlen, self.max_seqlen, block, block, count
            rows = [self._bigbird_block_rand_mask(*sizes, last_idx=1024)[: length // block - 2] for _ in range(heads)]
        else:
            lengths, counts = self._get_rand_attn_plan(length, block, count)
            rows = self._bigbird_block_rand_mask_with_head(
                from_seq_length=length, to_seq_length=length, from_block_size=block, to_block_size=block,
                num_heads=heads, plan_from_length=lengths, plan_num_rand_blocks=counts,
            )  # fmt: skip
        return tuple(tuple(tuple(int(x) for x in row) for row in head) for head in rows)


@cached(64)
def _pattern(block: int, count: int, drawn: Blocks) -> tuple[Pattern, Pattern | None, int]:
    """(pairs that are seen, those that count `times` times more or None, times)"""
    seen, again, times = [], [], set()
    for head in drawn:
        counted = [Counter([*_near(row, count), *head[row - 1]]) for row in range(1, count - 1)]
        pairs = [(row, column) for row, columns in enumerate(counted, 1) for column in columns]
        pairs += [(row, column) for row in (0, count - 1) for column in range(count)]
        seen.append(weft.blocks(block, pairs))
        more = [(row, column) for row, columns in enumerate(counted, 1) for column, n in columns.items() if n > 1]
        times |= {n - 1 for columns in counted for n in columns.values() if n > 1}
        again.append(weft.blocks(block, more))
    if len(times) > 1:
        raise UnsupportedError(
            f"random blocks of BigBird at {count} blocks", "they count differently often", "take a longer sequence"
        )
    return _heads(seen), _heads(again) if times else None, max(times, default=1)


def _near(row: int, count: int) -> set[int]:
    return {0, count - 1, row - 1, row, row + 1}


def _heads(patterns: Sequence[Pattern]) -> Pattern:
    return patterns[0] if len(set(patterns)) == 1 else weft.per_head(patterns)
