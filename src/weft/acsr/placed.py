"""A pattern over the tokens of a sequence, asked for some of its queries and keys: what decoding and caches need.

A model says its mask on positions of the whole sequence. A call has queries from `q_offset` on, and keys from
`k_offset` on. `placed` says the mask on the indices of the call. Wherever it can, it says so by an alignment. Then the
answer is the same object at every step of decoding, and nothing is planned anew.
"""

from __future__ import annotations

from typing import Any

from weft.acsr.steady import why_unsteady
from weft.caching import cached
from weft.pattern.algebra import And, Call, Operator, Or, Pattern
from weft.pattern.arguments import rebuild
from weft.pattern.bounds import INF, Bound, Stair
from weft.pattern.excerpt import excerpt
from weft.pattern.leaves import Affine, PerBatch, PerHead
from weft.pattern.relation import ANY


def placed(pattern: Pattern, sizes: tuple[int, int], offsets: tuple[int, int]) -> Pattern:
    """What queries q_offset + i see of keys k_offset + k, for i < M and k < N.

    sizes: M and N. offsets: q_offset and k_offset. The pattern counts both from the first token of the sequence,
    however its parts are aligned. Example, the step of decoding that makes token 7::

        placed(weft.causal() & weft.window(left=3), (1, 8), (7, 0))  # the same, aligned "bottom-right"
    """
    (m, n), (q_offset, k_offset) = sizes, offsets
    if q_offset == k_offset == 0:
        return pattern if m == n else realigned(pattern, "top-left")
    if n - m == q_offset - k_offset:
        last = last_rows(pattern, k_offset == 0)
        if last is not None:
            return last
    after, keys_after = q_offset + m, k_offset + n
    whole = realigned(pattern, "top-left")
    return excerpt(whole, after, (q_offset, after), (k_offset, keys_after), keys_after)


@cached(256)
def last_rows(pattern: Pattern, from_first_key: bool) -> Pattern | None:
    """What the last queries see of the last keys, at any numbers of both; None where it depends on these.

    from_first_key: the keys begin with the first one of the sequence.
    """
    last = realigned(pattern, "bottom-right")
    return last if by_distance(last) or (from_first_key and why_unsteady(last) is None) else None


@cached(256)
def realigned(pattern: Pattern, align: str) -> Pattern:
    """The expression with this alignment on every part that depends on positions, whatever was declared."""
    return _declared(pattern, align).filled(align)


def _declared(value: Any, align: str) -> Any:
    if isinstance(value, Call):
        args = {name: _declared(x, align) for name, x in value.args}
        return rebuild(value.name, {**args, "align": align} if args.get("align") is not None else args)
    if isinstance(value, Operator):
        return value.rebuilt(tuple(_declared(part, align) for part in value.parts))
    return tuple(_declared(x, align) for x in value) if isinstance(value, tuple) else value


def by_distance(pattern: Pattern) -> bool:
    """Whether it asks for k - q alone, so that moving queries and keys together changes nothing."""
    if isinstance(pattern, Call):
        return by_distance(pattern.body)
    if isinstance(pattern, Affine):
        relation = pattern.relation
        bounds = all(map(_is_diagonal, relation.lower + relation.upper))
        return bounds and pattern.length is None and relation.rows == relation.keys == ANY
    return isinstance(pattern, Operator) and _keeps_distance(pattern) and all(map(by_distance, pattern.parts))


def _keeps_distance(pattern: Operator) -> bool:
    return type(pattern).__name__ in ("And", "Or", "Not", "PerHead", "PerBatch")


@cached(256)
def within_causal(pattern: Pattern) -> bool:
    """Whether its expression shows that no query sees a later key. False where it does not show it."""
    if isinstance(pattern, Call):
        return within_causal(pattern.body)
    if isinstance(pattern, Affine):
        return any(_is_diagonal(bound) and bound.base <= 1 for bound in pattern.relation.upper)  # type: ignore[union-attr]
    if isinstance(pattern, And):
        return any(map(within_causal, pattern.parts))
    return isinstance(pattern, (Or, PerBatch, PerHead)) and all(map(within_causal, pattern.parts))


def _is_diagonal(bound: Bound) -> bool:
    """Whether T(i) is i and a constant."""
    if not isinstance(bound, Stair) or (bound.rise, bound.run) != (1, 1):
        return False
    return (bound.out_lo, bound.out_hi, bound.in_lo, bound.in_hi) == (-INF, INF, -INF, INF)
