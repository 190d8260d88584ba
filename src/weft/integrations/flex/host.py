"""float64 on a GPU, in which no kernel computes: the host does, and the results go back to where the tensors are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from weft.score import Score
from weft.torch.attention import attention


def needs_host(query: Tensor) -> bool:
    """Whether no kernel of the device that it is on has its dtype."""
    return query.dtype is torch.float64 and query.is_cuda


def on_host(tensors: tuple[Tensor, Tensor, Tensor], mask: Any, score: Score | None, options: dict[str, Any]) -> Any:
    """weft.attention of copies on the host; gradients flow through the copies, those of tables too."""
    device = tensors[0].device
    if score is not None:
        score = Score(score.text, tuple(x.cpu() for x in score.tables), score.name)
    q, k, v = (x.cpu() for x in tensors)
    found: Any = attention(q, k, v, mask, score=score, **options)
    return tuple(x.to(device) for x in found) if isinstance(found, tuple) else found.to(device)
