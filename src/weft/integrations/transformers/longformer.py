"""Longformer's attention on weft: a window on both sides, and tokens that see all and that all see."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

import weft
from weft.caching import cached
from weft.errors import UnsupportedError
from weft.pattern.algebra import Pattern
from weft.torch.attention import attention

Rows = tuple[tuple[int, ...], ...]  # tokens of each batch row


class SparseLongformerSelfAttention(LongformerSelfAttention):
    """`LongformerSelfAttention` with weft in place of overlapping chunks; parameters are the same.

    A global token asks by projections of its own (query_global and so on), and every token sees it by the usual ones.
    """

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor, is_index_masked: Tensor | None = None,
        is_index_global_attn: Tensor | None = None, is_global_attn: bool | None = None,
        output_attentions: bool = False,
    ) -> tuple[Tensor]:  # fmt: skip
        """hidden_states (B, S, E) -> ((B, S, E),). attention_mask (B, S): below 0 is padding, above 0 a global token.

        Raises UnsupportedError where weights are asked for, which are never made.
        """
        if output_attentions:
            raise UnsupportedError(
                "SparseLongformerSelfAttention(output_attentions=True)", "weights are never made",
                "load the model anew, and do not swap it",
            )  # fmt: skip
        dead, special = attention_mask < 0, attention_mask > 0
        listed = _tokens(dead), _tokens(special)
        q, k, v = (self._heads(project(hidden_states)) for project in (self.query, self.key, self.value))
        dropout = self.dropout if self.training else 0
        pattern = _pattern(self.one_sided_attn_window_size, *listed)
        out = attention(q, k, v, pattern, layout="bshd", dropout=dropout)
        out = out.masked_fill(dead[:, :, None, None], 0)
        if any(listed[1]):
            out = self._of_global_tokens(hidden_states, out, listed, dropout)
        return (out.flatten(2),)

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, self.head_dim))

    def _of_global_tokens(self, hidden: Tensor, out: Tensor, listed: tuple[Rows, Rows], dropout: float) -> Tensor:
        """out with the rows of global tokens computed by their own projections, over all keys but padding."""
        k, v = (self._heads(project(hidden)) for project in (self.key_global, self.value_global))
        rows: list[int] = []
        at: list[int] = []
        found = []
        for row, tokens in enumerate(listed[1]):
            if tokens:
                one = slice(row, row + 1)
                places = torch.tensor(tokens, device=hidden.device)
                q = self._heads(self.query_global(hidden[one, places]))
                pattern = _unpadded(listed[0][row])
                found.append(attention(q, k[one], v[one], pattern, layout="bshd", dropout=dropout)[0])
                rows += [row] * len(tokens)
                at += tokens
        where = torch.tensor(rows, device=out.device), torch.tensor(at, device=out.device)
        return out.index_put(where, torch.cat(found))


# Patterns are made outside of a graph that Dynamo traces, since numpy makes them.
@torch.compiler.disable  # type: ignore[untyped-decorator]
def _tokens(chosen: Tensor) -> Rows:
    return tuple(tuple(np.flatnonzero(row).tolist()) for row in chosen.detach().cpu().numpy())


@torch.compiler.disable  # type: ignore[untyped-decorator]
@cached(256)
def _pattern(side: int, dead: Rows, special: Rows) -> Pattern:
    """The window and the global tokens, without padding."""
    rows = [
        (weft.window(side, side) | weft.global_tokens(list(tokens), rows=False)) & _unpadded(hidden)
        if tokens
        else weft.window(side, side) & _unpadded(hidden)
        for hidden, tokens in zip(dead, special, strict=True)
    ]
    return rows[0] if len(set(rows)) == 1 else weft.per_batch(rows)


@torch.compiler.disable  # type: ignore[untyped-decorator]
@cached(256)
def _unpadded(dead: tuple[int, ...]) -> Pattern:
    return ~weft.global_tokens(list(dead), rows=False) if dead else weft.full()
