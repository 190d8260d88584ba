"""DiNAT's attention on weft: neighbourhoods of an image, dilated in every other layer, with learned relative biases."""

from __future__ import annotations

from torch import Tensor
from transformers.models.dinat.modeling_dinat import NeighborhoodAttention

import weft
from weft.caching import cached
from weft.errors import UnsupportedError
from weft.pattern.algebra import Pattern
from weft.torch.attention import attention


class SparseNeighborhoodAttention(NeighborhoodAttention):
    """`NeighborhoodAttention` with weft in place of the two functions of NATTEN; parameters are the same."""

    def forward(self, hidden_states: Tensor, output_attentions: bool | None = False) -> tuple[Tensor]:
        """hidden_states (B, height, width, E) -> ((B, height, width, E),).

        Raises UnsupportedError where weights are asked for, which are never made, and PatternError for an image that is
        smaller than a neighbourhood. The library pads images before.
        """
        if output_attentions:
            raise UnsupportedError(
                "SparseNeighborhoodAttention(output_attentions=True)", "weights are never made",
                "load the model anew, and do not swap it",
            )  # fmt: skip
        grid = hidden_states.shape[1], hidden_states.shape[2]
        q, k, v = (
            project(hidden_states).unflatten(-1, (self.num_attention_heads, -1)).flatten(1, 2)
            for project in (self.query, self.key, self.value)
        )
        out = attention(
            q, k, v, _pattern(grid, self.kernel_size, self.dilation), layout="bshd",
            bias=weft.bias.grid(self.rpb, grid, self.dilation), dropout=self.dropout.p if self.training else 0,
        )  # fmt: skip
        return (out.flatten(2).unflatten(1, grid),)


@cached(64)
def _pattern(grid: tuple[int, int], size: int, dilation: int) -> Pattern:
    """One object, whose plan is found by its identity."""
    return weft.neighborhood(grid, size, dilation=dilation)
