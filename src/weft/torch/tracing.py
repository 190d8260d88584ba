"""`weft.trace_score`: a score function of torch, traced."""

from __future__ import annotations

from typing import Any, NamedTuple
from weakref import ReferenceType, ref

import numpy as np
import torch
from torch import Tensor
from torch.compiler import is_compiling

from weft.caching import Recent
from weft.errors import OptionError
from weft.score import Score
from weft.score.tracer import traced
from weft.torch.fingerprint import Fingerprint, UnseenError, fingerprint

KEPT = 256  # functions


def trace_score(function: Any) -> Score:
    """A function of (score, b, h, q, k), as FlexAttention's score_mod, as what `attention(score=...)` computes.

    The function is called once, with objects that stand for the score and its indices. Indices are int64 tokens as the
    pattern counts them, from the first query and the first key on. Tensors that it captures become tables with
    gradients; they are read by any of b, h, q and k, and what is made of them. Pass the result inside torch.compile,
    where a function cannot be traced. Trace anew when the function captures other tensors. Raises OptionError for what
    changes or prints something, branches on values, returns no number, or is not known. Example::

        slopes = torch.nn.Parameter(torch.rand(heads))
        score = weft.trace_score(lambda score, b, h, q, k: score - slopes[h] * (q - k).abs())
        out = weft.attention(q, k, v, weft.causal(), score=score)
    """
    if is_compiling():
        raise OptionError(
            "trace_score(f) inside a compiled function", "a graph cannot read what a function does",
            "call it outside of the compiled function, and pass what it returns",
        )  # fmt: skip
    return _traced(function, own=False)


def _traced(function: Any, *, own: bool) -> Score:
    found, _ = traced(function, _is_numpy, own=own)
    tables = tuple(x if isinstance(x, Tensor) else torch.from_numpy(np.ascontiguousarray(x)) for x in found.tables)
    return Score(found.text, tables, found.name)


class _Known(NamedTuple):
    """A function that was traced. places: of its tables among the tensors of its fingerprint, which stay theirs.
    references: those tensors. held: what else the fingerprint names by identity.
    """

    text: str
    name: str
    places: tuple[int, ...]
    references: tuple[ReferenceType[Tensor], ...]
    held: tuple[Any, ...]


_known: Recent[tuple[Any, ...], _Known] = Recent(KEPT)


def score_of(function: Any, *, own: bool = False) -> Score:
    """`trace_score`, once for a function whose code and captured values are the same; no tensor is kept alive.

    own: whether the function may change its first argument, as FlexAttention's may.
    """
    try:
        found = fingerprint(function)
    except UnseenError:
        return _traced(function, own=own)
    known = _known.get((own, *found.key))
    if known is not None and found.is_of(known.references):
        return Score(known.text, tuple(found.tensors[i] for i in known.places), known.name)
    made = _traced(function, own=own)
    _keep((own, *found.key), found, made)
    return made


def _keep(key: tuple[Any, ...], found: Fingerprint, made: Score) -> None:
    """Remember a trace, unless a table is none of the captured tensors, but was made of one."""
    number = {id(x): i for i, x in enumerate(found.tensors)}
    if not all(id(x) in number for x in made.tables):
        return
    places = tuple(number[id(x)] for x in made.tables)
    _known.keep(key, _Known(made.text, made.name, places, tuple(map(ref, found.tensors)), found.held))


def _is_numpy(value: Any) -> bool:
    return type(value) is np.ndarray
