"""`weft.jax.attention` by kernels: checked arguments to a call, and its results to the caller's layout."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from weft.errors import AlignmentError, UnsupportedError
from weft.jax.extras import Extras
from weft.jax.gpu import attention as kernels
from weft.jax.gpu.attention import Call, Rows
from weft.jax.gpu.bind import card
from weft.kernels.gpu.layout import Options
from weft.pattern.algebra import Pattern
from weft.pattern.leaves import has_grid
from weft.planning.problem import Problem

_card = cache(card)
_attend: Any = jax.jit(kernels.attend, static_argnums=0)


def attention(
    problem: Problem, mask: Pattern, tensors: tuple[Array, Array, Array], given: Any, extras: Extras
) -> tuple[Array, Array]:  # fmt: skip
    """(out, lse) in the layout of the tensors. given: `weft.jax.attention.Options`.

    Raises what planning raises, and UnsupportedKernel without a GPU.
    """
    q, k, v = tensors
    scale = problem.d**-0.5 if given.scale is None else float(given.scale)
    softcap = None if given.softcap is None else float(given.softcap)
    options = Options(
        scale, softcap, deterministic=bool(given.deterministic), one_argument=True, score=extras.score,
        dropout=extras.dropout,
    )  # fmt: skip
    sinks, slopes = (None if x is None else jnp.asarray(x) for x in (given.sinks, given.alibi_slopes))
    if slopes is not None or extras.shifted:
        options = options._replace(shift=_shift(mask, problem))
    call = Call(mask, Problem(**{**vars(problem), "device": "cuda"}), given.target or _card(), options, given.layout)
    out, lse = _attend(call, q, k, v, Rows(sinks, slopes, extras.seed, extras.tables))
    return out, lse.swapaxes(1, 2) if given.layout == "bshd" else lse


def _shift(mask: Pattern, problem: Problem) -> int:
    """What alignment adds to query indices in ALiBi's distance."""
    m, n = problem.m, problem.n
    if has_grid(mask):
        raise UnsupportedError(
            f"attention(alibi_slopes=...) under {mask}", "ALiBi has no meaning on a grid of several axes",
            "leave the slopes out, or use a pattern of one axis",
        )  # fmt: skip
    if m == n:
        return 0
    declared = set(mask.alignments())
    if len(declared) != 1 or None in declared:
        raise AlignmentError(
            f"attention(alibi_slopes=...) under {mask} at M={m}, N={n}",
            "the pattern does not declare one alignment, so distances are not defined",
            'declare the same one for all parts, as .aligned("bottom-right") does where none does',
        )
    return n - m if declared == {"bottom-right"} else 0
