"""How many terms a pattern falls into, told by the calls that it consists of."""

from __future__ import annotations

from math import prod

from weft.pattern import algebra as ops
from weft.pattern.algebra import Pattern

FEW = 5  # terms up to which a form is taken as it comes
COMBS = ("keys", "queries", "diagonals")
UNIONS = {"strided": 2, "fixed": 2, "longformer": 3, "bigbird": 6}


def breadth(pattern: Pattern) -> int:
    """How many terms a pattern falls into at most, by the calls that it consists of."""
    if isinstance(pattern, ops.Or):
        return sum(map(breadth, pattern.parts))
    if isinstance(pattern, ops.And):
        return prod(map(breadth, pattern.parts))
    if isinstance(pattern, ops.Not):
        return 1 if breadth(pattern.part) == 1 and _one_sided(pattern.part) else 2 * breadth(pattern.part)
    if not isinstance(pattern, ops.Call):
        return breadth(pattern.parts[0]) if isinstance(pattern, ops.Operator) else 1
    args = dict(pattern.args)
    if pattern.name in COMBS:
        return int(args.get("width", 1))
    if pattern.name == "global_tokens":
        return int(args.get("rows", True)) + int(args.get("columns", True))
    if pattern.name == "documents" and "ids" in args:
        return FEW + 1
    inner = [value for value in args.values() if isinstance(value, Pattern)]
    inner += [one for value in args.values() if isinstance(value, tuple) for one in value if isinstance(one, Pattern)]
    return UNIONS.get(pattern.name, prod(map(breadth, inner)))


def _one_sided(pattern: Pattern) -> bool:
    """Whether a call's complement is one set of its own kind."""
    name = getattr(pattern, "name", "")
    args = dict(getattr(pattern, "args", ()))
    one = args.get("rows", True) != args.get("columns", True)
    return name in ("prefix", "causal", "staircase", "steps") or (name == "global_tokens" and one)
