"""flex_attention inside torch.compile: what Dynamo has read of a score or mask function becomes weft's own expression.

Here is what Dynamo traces; `weft.integrations.flex.dynamo` is what runs while it does.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator
from torch.compiler import assume_constant_result
from torch.nn.attention import flex_attention as flex

from weft.integrations.flex.block_mask import BlockMask
from weft.integrations.flex.checks import check_rows
from weft.pattern.library import full
from weft.score import Score
from weft.score.from_end import counted_from_the_end
from weft.torch.tracing import score_of

FULL = full()


class InGraph(HigherOrderOperator):
    """A question about a function, which Dynamo answers while it traces: no graph ever holds it."""

    def __init__(self, name: str, answer: Callable[..., Any]) -> None:
        super().__init__(name)
        self.answer = answer

    def __call__(self, *asked: Any) -> Any:
        """The same without Dynamo: where a graph broke off."""
        return self.answer(*asked)


def with_own_score(score_mod: Callable[..., Any], score: Any, *at: Any) -> Any:
    """A score function whose first argument is its own to change, also where that has a gradient."""
    return score_mod(score.clone(), *at)


def _text_and_tables(query: Tensor, key: Tensor, function: Callable[..., Any]) -> tuple[str, tuple[Tensor, ...]]:
    found = score_of(function)
    shapes = tuple(tuple(x.shape) for x in found.tables)
    return counted_from_the_end(found.text, shapes, (*query.shape[:3], key.shape[2])), found.tables


# (query, key, score function) -> its text, its tables; (any tensor, mask function) -> its pattern, None if it has none
score_in_graph = InGraph("weft_score_in_graph", _text_and_tables)
mask_in_graph = InGraph("weft_mask_in_graph", lambda tensor, function: None)


def _prepare() -> bool:
    """Tell Dynamo about the questions, while it traces; until then nothing of it is imported."""
    from weft.integrations.flex import dynamo

    return dynamo.register()


def _say(text: str) -> bool:
    """A warning while a graph is traced."""
    warnings.warn(text, UserWarning, stacklevel=2)
    return True


prepare, say = map(assume_constant_result, (_prepare, _say))


def meant(query: Tensor, key: Tensor, score_mod: Any, block_mask: Any) -> tuple[Any, Any]:
    """Mask and score as weft.attention takes them."""
    prepare()
    mask, function = FULL, None if score_mod is None else partial(with_own_score, score_mod)
    if block_mask is not None and block_mask.BLOCK_SIZE[0] != flex._LARGE_SPARSE_BLOCK_SIZE:
        known = block_mask._pattern if isinstance(block_mask, BlockMask) and hasattr(block_mask, "_pattern") else None
        if known is None:
            function = _in_scores(function, block_mask)
        else:
            mask = known
            check_rows(block_mask._reads if hasattr(block_mask, "_reads") else "", query)
    if function is None:
        return mask, None
    text, tables = score_in_graph(query, key, function)
    return mask, Score(text, tables, "score_mod")


def _in_scores(score_mod: Any, block_mask: Any) -> Any:
    """A score function that masks too: mask_mod inside of listed blocks, full blocks whole, as FlexAttention's kernels.

    This is for a BlockMask whose blocks a graph makes: they are data, so no plan can leave them out.
    """
    say(
        "flex_attention computes every pair here: a graph makes this BlockMask, and weft cannot read it beforehand. "
        "Call create_block_mask outside of the compiled function, and block_mask.pattern once for from_kv_blocks"
    )
    listed, whole = _listed(block_mask.kv_num_blocks, block_mask.kv_indices), None
    if block_mask.full_kv_num_blocks is not None:
        whole = _listed(block_mask.full_kv_num_blocks, block_mask.full_kv_indices)
    mask_mod = block_mask.mask_mod
    rows, columns = block_mask.BLOCK_SIZE
    several_rows, several_heads = listed.shape[0] > 1, listed.shape[1] > 1

    def function(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        at = b if several_rows else b * 0, h if several_heads else h * 0, q // rows, k // columns
        live = listed[at] & mask_mod(b, h, q, k)
        if whole is not None:
            live = live | whole[at]
        return torch.where(live, score if score_mod is None else score_mod(score, b, h, q, k), -float("inf"))

    return function


def _listed(counts: Tensor, indices: Tensor) -> Tensor:
    """(B, H, rows, columns) booleans of lists of columns, of which the first `counts` are meant."""
    columns = indices.shape[-1]
    meant = torch.arange(columns, device=indices.device) < counts[..., None]
    found = indices.new_zeros((*indices.shape[:-1], columns + 1), dtype=torch.bool)
    # what is not meant goes to one more column
    return found.scatter(-1, torch.where(meant, indices, columns).long(), True)[..., :columns]


def with_pattern(mask: flex.BlockMask) -> Any:
    """A BlockMask that a graph made, with its pattern where its mask function captures no tensor."""
    prepare()
    found = mask_in_graph(mask.kv_num_blocks, mask.mask_mod)
    if found is None:
        return mask
    made = BlockMask(
        mask.seq_lengths, mask.kv_num_blocks, mask.kv_indices, mask.full_kv_num_blocks, mask.full_kv_indices,
        mask.q_num_blocks, mask.q_indices, mask.full_q_num_blocks, mask.full_q_indices, mask.BLOCK_SIZE, mask.mask_mod,
    )  # fmt: skip
    made._pattern = found
    return made
