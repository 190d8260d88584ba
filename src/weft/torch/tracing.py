"""`weft.trace_score`: a score function of torch, traced."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.compiler import is_compiling

from weft.errors import OptionError
from weft.score import Score
from weft.score.tracer import traced


def trace_score(function: Any) -> Score:
    """A function of (score, b, h, q, k), as FlexAttention's score_mod, as what `attention(score=...)` computes.

    The function is called once, with objects that stand for the score and its indices: int64 tokens as the pattern
    counts them, from the first query and the first key on. Tensors that it captures become tables with gradients; they
    are read by any of b, h, q and k, and what is made of them. Pass the result inside torch.compile, where a function
    cannot be traced. Trace anew when the function captures other tensors. Raises OptionError for what changes or prints
    something, branches on values, returns no number, or is not known. Example::

        slopes = torch.nn.Parameter(torch.rand(heads))
        score = weft.trace_score(lambda score, b, h, q, k: score - slopes[h] * (q - k).abs())
        out = weft.attention(q, k, v, weft.causal(), score=score)
    """
    if is_compiling():
        raise OptionError(
            "trace_score(f) inside a compiled function", "a graph cannot read what a function does",
            "call it outside of the compiled function, and pass what it returns",
        )  # fmt: skip
    found, _ = traced(function, _is_numpy)
    tables = tuple(x if isinstance(x, Tensor) else torch.from_numpy(np.ascontiguousarray(x)) for x in found.tables)
    return Score(found.text, tables, found.name)


def _is_numpy(value: Any) -> bool:
    return type(value) is np.ndarray
