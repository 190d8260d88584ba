"""Diagrams of the algorithms that weft cares about."""

from __future__ import annotations

from dataclasses import dataclass

from weft.acsr.format import Term
from weft.errors import RelabelError
from weft.napkin.diagram import ELEMENT, Array, Axis, Box, Diagram, Dtype, Reading
from weft.napkin.operations import CENTRE, CONTRACT, GELU, MASK, SOFTMAX, UNIT, Operation, scale
from weft.pattern.relation import Relation


def matmul(a: Axis, b: Axis, c: Axis, dtype: Dtype = ELEMENT) -> Diagram:
    """Y[a, c] = sum over b of A[a, b] B[b, c]."""
    arrays = (Array("A", (a, b), dtype), Array("B", (b, c), dtype), Array("Y", (a, c), dtype))
    return Diagram("matmul", arrays, (Box(CONTRACT, ("A", "B"), "Y", (b.name,)),), ("A", "B"), ("Y",))


def softmax(x: Axis, woven: tuple[Axis, ...] = (), dtype: Dtype = ELEMENT) -> Diagram:
    """P = softmax of S over x."""
    return _one("softmax", SOFTMAX, ("S", "P"), (*woven, x), (x.name,), dtype)


def _one(name: str, operation: Operation, names: tuple[str, str], axes: tuple[Axis, ...],
         over: tuple[str, ...], dtype: Dtype) -> Diagram:  # fmt: skip
    arrays = tuple(Array(n, axes, dtype) for n in names)
    return Diagram(name, arrays, (Box(operation, names[:1], names[1], over),), names[:1], names[1:])


def normalisation(x: Axis, woven: tuple[Axis, ...] = (), kind: str = "rms", dtype: Dtype = ELEMENT) -> Diagram:
    """Root-mean-square normalisation over x; kind "layer" centres first."""
    rms = _one("rms-norm", UNIT, ("X", "N"), (*woven, x), (x.name,), dtype)
    if kind == "rms":
        return rms
    if kind != "layer":
        raise RelabelError(f"normalisation(kind={kind!r})", "there is no such kind", "pass rms or layer")
    return _one("centre", CENTRE, ("X", "C"), (*woven, x), (x.name,), dtype) >> rms


def mlp(a: Axis, b: Axis, h: Axis, c: Axis, dtype: Dtype = ELEMENT) -> Diagram:
    """Y[a, c]: a product into h, GELU, a product out of it."""
    arrays = tuple(
        Array(name, axes, dtype)
        for name, axes in (
            ("X", (a, b)), ("U", (b, h)), ("W", (h, c)), ("H", (a, h)), ("G", (a, h)), ("Y", (a, c)))
    )  # fmt: skip
    boxes = (
        Box(CONTRACT, ("X", "U"), "H", (b.name,)),
        Box(GELU, ("H",), "G"),
        Box(CONTRACT, ("G", "W"), "Y", (h.name,)),
    )
    return Diagram("mlp", arrays, boxes, ("X", "U", "W"), ("Y",))


Q, X, D, V = (Axis(name) for name in "qxdv")


@dataclass(frozen=True)
class AttentionAxes:
    """The axes of one attention. q, x: one axis of queries and keys, or one for each axis of a grid.

    heads: axes that all arrays have; group: query heads that share a key/value head. v: the axis of V, if it is not d.
    """

    q: tuple[Axis, ...] = (Q,)
    x: tuple[Axis, ...] = (X,)
    d: Axis = D
    v: Axis = V
    heads: tuple[Axis, ...] = ()
    group: tuple[Axis, ...] = ()


def attention(
    axes: AttentionAxes | None = None,
    dtype: Dtype = ELEMENT,
    relations: tuple[Relation, ...] = (),
    scaled: float | None = None,
) -> Diagram:
    """Naive attention: O[q, v] = sum over x of softmax over x of (Q[q, d] . K[x, d]) V[x, v].

    relations: what each axis of queries may see on its axis of keys (none: everything). scaled: a factor of scores.
    """
    axes = axes or AttentionAxes()
    if relations and not len(relations) == len(axes.q) == len(axes.x):
        raise RelabelError("attention", f"{len(relations)} relations for {len(axes.q)} axes", "pass one for each axis")
    rows, keys = (*axes.heads, *axes.group, *axes.q), (*axes.heads, *axes.x)
    score = (*rows, *axes.x)
    shapes = {"Q": (*rows, axes.d), "K": (*keys, axes.d), "V": (*keys, axes.v), "S": score}
    over = tuple(axis.name for axis in axes.x)
    boxes, last = [Box(CONTRACT, ("Q", "K"), "S", (axes.d.name,))], "S"
    steps: list[tuple[str, Operation, tuple[Reading, ...]]] = []
    if scaled is not None:
        steps.append(("T", scale(scaled), ()))
    if relations:
        pairs = zip(axes.q, axes.x, relations, strict=True)
        steps.append(("L", MASK, tuple(Reading(q.name, x.name, relation) for q, x, relation in pairs)))
    for name, operation, readings in steps:
        boxes.append(Box(operation, (last,), name, (), readings))
        shapes[name], last = score, name
    boxes += [Box(SOFTMAX, (last,), "P", over), Box(CONTRACT, ("P", "V"), "O", over)]
    shapes |= {"P": score, "O": (*rows, axes.v)}
    arrays = tuple(Array(name, shape, dtype) for name, shape in shapes.items())
    return Diagram("attention", arrays, tuple(boxes), ("Q", "K", "V"), ("O",))


def attention_of_term(term: Term, d: int, v: int, dtype: Dtype = ELEMENT) -> Diagram:
    """Attention of one head over one affine term: an axis for each axis of its grids, read through its relation.

    Tokens of the arrays are those of the grids, from their origins on.
    """
    if not (term.rows.is_every and term.keys.is_every):
        raise RelabelError("attention over a term", "the term lists its tokens one by one", "use its affine hull")
    rank = range(term.rank)
    tag = ("",) if term.rank == 1 else tuple(str(i + 1) for i in rank)
    axes = AttentionAxes(
        tuple(Axis(f"q{tag[i]}", term.q.shape[i]) for i in rank),
        tuple(Axis(f"x{tag[i]}", term.k.shape[i]) for i in rank),
        Axis("d", d),
        Axis("v", v),
    )
    return attention(axes, dtype, term.axes)
