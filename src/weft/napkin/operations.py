"""Operations: what a box of a diagram computes in float64, and how it may be computed piece by piece.

A meaning gets its arrays with the woven axes in front, broadcast against each other. The axes that the operation works
on are flattened into the last one. An accumulator is what makes an operation streamable; it is supplied here, never
guessed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Reals: TypeAlias = NDArray[np.float64]
State: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True)
class Accumulator:
    """A reduction by chunks: `step(None, *chunk)` makes the first state, `finish(state)` the result.

    scalars: numbers kept for each row of the first input, beside the output itself.
    """

    name: str
    step: Callable[..., State]
    finish: Callable[[State], Reals]
    scalars: int = 0


@dataclass(frozen=True)
class Operation:
    """A function of arrays. reduces: whether the axes it works on are gone in its output.

    flops: floating-point operations for each point of all its axes together; pointwise: for each of its first input.
    """

    name: str
    meaning: Callable[..., Reals]
    arity: int = 1
    reduces: bool = False
    accumulator: Accumulator | None = None
    flops: int = 0
    pointwise: int = 1


# ---- meanings --------------------------------------------------------------------------------------------------------
def _dot(a: Reals, b: Reals) -> Reals:
    return np.asarray(np.einsum("...x,...x->...", a, b))


def _exp_from(scores: Reals, top: Reals) -> Reals:
    """exp(scores - top), and 0 in rows without a live key, whose top is -inf."""
    return np.asarray(np.exp(scores - np.where(np.isfinite(top), top, 0.0)))


def _softmax(scores: Reals) -> Reals:
    weights = _exp_from(scores, scores.max(-1, keepdims=True, initial=-np.inf))
    total = weights.sum(-1, keepdims=True)
    return np.asarray(weights / np.where(total == 0, 1.0, total))


def _unit(x: Reals) -> Reals:
    return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True)))


def _centred(x: Reals) -> Reals:
    return np.asarray(x - x.mean(-1, keepdims=True))


def _gelu(x: Reals) -> Reals:
    return np.asarray(0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))


# ---- accumulators ----------------------------------------------------------------------------------------------------
def _plus(part: Callable[..., Reals]) -> Callable[..., State]:
    return lambda state, *chunk: (part(*chunk) if state is None else state[0] + part(*chunk),)


def _first(state: State) -> Reals:
    return np.asarray(state[0])


def _largest(state: State | None, chunk: Reals) -> State:
    top = chunk.max(-1, initial=-np.inf)
    return (top if state is None else np.maximum(state[0], top),)


def _softmax_step(state: State | None, scores: Reals, values: Reals) -> State:
    """(maximum, sum, product) so far; what was summed under an older maximum is rescaled."""
    top = scores.max(-1, initial=-np.inf)
    if state is not None:
        top = np.maximum(state[0], top)
    weights = _exp_from(scores, top[..., None])
    total, product = weights.sum(-1), _dot(weights, values)
    if state is not None:
        rescale = _exp_from(state[0], top)
        total, product = total + state[1] * rescale, product + state[2] * rescale
    return top, total, product


def _softmax_finish(state: State) -> Reals:
    return np.asarray(state[2] / np.where(state[1] == 0, 1.0, state[1]))


def _unit_step(state: State | None, x: Reals, weights: Reals) -> State:
    new = (x.shape[-1], (x * x).sum(-1), _dot(x, weights))
    return new if state is None else tuple(a + b for a, b in zip(state, new, strict=True))


def _unit_finish(state: State) -> Reals:
    return np.asarray(state[2] / np.sqrt(state[1] / state[0]))


def _whole(accumulator: Accumulator) -> Callable[..., Reals]:
    """The meaning of an operation that is known by its accumulator: one chunk."""
    return lambda *arrays: accumulator.finish(accumulator.step(None, *arrays))


ONLINE_SOFTMAX = Accumulator("online softmax with rescaling", _softmax_step, _softmax_finish, 2)
ONLINE_UNIT = Accumulator("sum of squares beside the sum", _unit_step, _unit_finish, 1)

CONTRACT = Operation("contract", _dot, 2, True, Accumulator("sum", _plus(_dot), _first), 2, 0)
SUM = Operation("sum", lambda x: np.asarray(x.sum(-1)), 1, True, Accumulator("sum", _plus(lambda x: x.sum(-1)), _first))
MAX = Operation("max", lambda x: np.asarray(x.max(-1)), 1, True, Accumulator("max", _largest, _first))
SOFTMAX = Operation("softmax", _softmax, pointwise=4)
SOFTMAX_CONTRACT = Operation("softmax-contract", _whole(ONLINE_SOFTMAX), 2, True, ONLINE_SOFTMAX, 2, 4)
UNIT = Operation("rms-norm", _unit, pointwise=3)
UNIT_CONTRACT = Operation("rms-norm-contract", _whole(ONLINE_UNIT), 2, True, ONLINE_UNIT, 2, 2)
CENTRE = Operation("centre", _centred, pointwise=2)

MASK = Operation("mask", lambda scores, live: np.where(live, scores, -np.inf))  # `live` comes from the box's readings
GELU = Operation("gelu", _gelu, pointwise=8)


def scale(by: float) -> Operation:
    """Multiplication by a number."""
    return Operation(f"scale {by:.4g}", lambda x: np.asarray(x * by))


# (first, second) -> the one operation that both are together. A lemma of algebra each, proven by the tests.
LEMMAS = {
    (SOFTMAX, CONTRACT): SOFTMAX_CONTRACT,  # sum(softmax(s) * v) = sum(exp(s - m) v) / sum(exp(s - m))
    (UNIT, CONTRACT): UNIT_CONTRACT,  # sum(x / rms * w) = sum(x w) / rms
}
