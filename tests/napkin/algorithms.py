"""Small diagrams with random inputs, and the same algorithms written out in plain numpy."""

import numpy as np

from weft.napkin.builders import AttentionAxes, attention, matmul
from weft.napkin.diagram import Axis, Dtype
from weft.napkin.relabel import Derivation, flash_attention

SQUARE = AttentionAxes(v=Axis("d"))  # V as wide as K, as in the paper's formulas
OPEN = Dtype("open", "nbytes")


def axes(names):
    """One axis for each letter."""
    return tuple(Axis(name) for name in names)


def inputs(diagram, lengths, seed=0):
    """Normal variates for every input; `lengths` by axis."""
    rng = np.random.default_rng(seed)
    arrays = (diagram.array(name) for name in diagram.inputs)
    return {a.name: rng.standard_normal([lengths[axis] for axis in a.names]) for a in arrays}


def tiled_matmul(dtype=None):
    """The paper's product: rows and columns grouped, the rest streamed."""
    diagram = matmul(*axes("abc")) if dtype is None else matmul(*axes("abc"), dtype)
    return Derivation(diagram).group("a", "shared").group("c", "shared").stream("b", "shared")


def flash(dtype=None, relations=()):
    """The paper's attention: one head, queries grouped, keys streamed."""
    return flash_attention(attention(SQUARE, *(() if dtype is None else (dtype,)), relations=relations))


def dense_attention(q, k, v, live=None):
    """(q, d), (x, d), (x, v): row by row; a row without a live key gives 0."""
    scores = q @ k.T
    if live is not None:
        scores = np.where(live, scores, -np.inf)
    top = scores.max(1, keepdims=True)
    weights = np.exp(scores - np.where(np.isfinite(top), top, 0))
    total = weights.sum(1, keepdims=True)
    return weights / np.where(total == 0, 1, total) @ v
