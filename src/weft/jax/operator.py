"""The differentiable operator: custom_vjp(custom_vmap(custom_partitioning(blocks))), of both directions.

Each of the three has no rule for the other two, so their order matters. Derivatives are taken first, then dimensions
are mapped, then the program is divided among devices. Arrays are (L, B, K, G, M, D) of queries and (L, B, K, N, D) of
keys; L counts mapped elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.custom_batching import custom_vmap
from jax.sharding import PartitionSpec, auto_axes

from weft.errors import UnsupportedError
from weft.jax.arrays import varying
from weft.jax.backward import backward
from weft.jax.forward import forward
from weft.jax.partition import explicit_specs, partitioned
from weft.jax.scores import Beside, Scoring
from weft.jax.structure import Structure

FORWARD = ("q", "k", "k"), ("q", "row")
NUMBERS = ("batch", "heads")  # of batch rows and of heads, where anything depends on them
BACKWARD = ("q", "k", "k", "q", "row", "q", "row"), ("q", "k", "k")


@dataclass(frozen=True)
class Call:
    """What is static about one call. kind: the dtype of out."""

    structure: Structure
    how: Scoring
    kind: str


def attend(call: Call, q: Array, k: Array, v: Array, beside: Beside, tables: Any) -> tuple[Array, Array]:
    """(out (L, B, K, G, M, Dv), lse (L, B, K, G, M)). beside: what score functions and dropout take."""
    q, k, v, beside, tables = varying((q, k, v, beside, tables))
    return _attend(call, q, k, v, beside, tables)


def _forward(call: Call, q: Array, k: Array, v: Array, beside: Beside, tables: Any) -> tuple[Array, Array]:
    return _apply(_Direction(call), (q, k, v), beside, tables)


def _saved(call: Call, q: Any, k: Any, v: Any, beside: Any, tables: Any) -> Any:
    wanted = tuple(Wanted() if x.perturbed else None for x in beside.tables)
    q, k, v, beside, tables = jax.tree.map(lambda x: x.value, (q, k, v, beside, tables), is_leaf=is_primal)
    out, lse = _attend(call, q, k, v, beside, tables)
    return (out, lse), (q, k, v, out, lse, beside, tables, wanted)


class Wanted(NamedTuple):
    """Stands among what a rule saves for a table whose gradient is asked for: which, is known while JAX traces."""


def is_primal(x: Any) -> bool:
    """Whether x is an argument as such rules get it."""
    return isinstance(x, jax.custom_derivatives.CustomVJPPrimal)


def is_zero(x: Any) -> bool:
    """Whether a cotangent is zero for certain, so that nothing need be computed of it."""
    return isinstance(x, jax.custom_derivatives.SymbolicZero)


def _gradients(call: Call, saved: Any, given: Any) -> Any:
    q, k, v, out, lse, beside, tables, wanted = saved
    dout, dlse = (_dense(x, like) for x, like in zip(given, (out, lse), strict=True))
    asked = tuple(x is not None for x in wanted)
    dq, dk, dv, *found = _gradients_once(call, asked, (q, k, v, out, lse, dout, dlse), beside, tables)
    left = iter(found)
    return dq, dk, dv, Beside(tables=tuple(next(left) if want else None for want in asked)), None


def _dense(x: Any, like: Array) -> Array:
    return jnp.zeros_like(like) if is_zero(x) else x


_attend = jax.custom_vjp(_forward, nondiff_argnums=(0,))
_attend.defvjp(_saved, _gradients, symbolic_zeros=True)


def _backward(
    call: Call, wanted: tuple[bool, ...], tensors: tuple[Array, ...], beside: Beside, tables: Any
) -> tuple[Array, ...]:
    return _apply(_Direction(call, False, wanted), tensors, beside, tables)


def _twice(*args: Any) -> Any:
    raise UnsupportedError(
        "a second derivative of attention", "only the first derivative, in reverse mode, is implemented",
        "take it of dense attention, as jax.nn.dot_product_attention",
    )  # fmt: skip


_gradients_once = jax.custom_vjp(_backward, nondiff_argnums=(0, 1))
_gradients_once.defvjp(_twice, _twice)


# ---- mapped dimensions, devices --------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Direction:
    """Forward, or gradients; wanted: of which tables of score functions."""

    call: Call
    is_forward: bool = True
    wanted: tuple[bool, ...] = ()

    @property
    def given(self) -> tuple[str, ...]:
        """The kinds of the arrays that devices may divide."""
        return (FORWARD if self.is_forward else BACKWARD)[0] + (NUMBERS if self.call.how.by_pairs else ())

    @property
    def made(self) -> tuple[str, ...]:
        """The kinds of the results before gradients of tables."""
        return (FORWARD if self.is_forward else BACKWARD)[1]


def _apply(direction: _Direction, tensors: tuple[Array, ...], beside: Beside, tables: Any) -> Any:
    leaves, tree = jax.tree.flatten((beside.seed, beside.tables, tables))
    numbers = (beside.batch, beside.heads) if direction.call.how.by_pairs else ()
    masks = len(jax.tree.leaves(tables))
    return _operator(direction, tree, tuple(x.ndim for x in leaves), masks)(*tensors, *numbers, *leaves)


@lru_cache(maxsize=256)
def _operator(direction: _Direction, tree: Any, ranks: tuple[int, ...], masks: int) -> Callable[..., Any]:
    """A direction as a function of arrays; the last `masks` of them are tables of a mask."""
    call, given = direction.call, direction.given
    numbers = len(NUMBERS) if call.how.by_pairs else 0

    def blocks(*args: Array) -> tuple[Array, ...]:
        seed, read, tables = jax.tree.unflatten(tree, args[len(given) :])
        tensors, counted = args[: len(given) - numbers], args[len(given) - numbers : len(given)]
        batch, heads = counted or (None, None)
        beside = Beside(batch, heads, seed, read)
        if direction.is_forward:
            return forward(tuple(tensors), beside, call.structure, tables, call.how, call.kind)
        masks = call.structure, tables
        return backward(tuple(tensors[:3]), tuple(tensors[3:]), beside, masks, call.how, direction.wanted)

    _, of_tables, _ = jax.tree.unflatten(tree, ranks)
    summed = [rank for rank, wanted in zip(of_tables, direction.wanted, strict=False) if wanted]
    divided = partitioned(blocks, given, direction.made, (ranks, summed), call.structure)

    def automatic(*args: Array) -> Any:
        """Inside, mesh axes are automatic: the operator's own rule divides it, not the rules of its loops."""
        specs = explicit_specs(args[: len(given)], given)
        if all(axis is None for spec in specs for axis in spec):
            return divided(*args)
        query, tables = PartitionSpec(*specs[0][:5]), (PartitionSpec(),) * sum(direction.wanted)
        outs = (query, query) if direction.is_forward else (*specs[:3], *tables)
        return auto_axes(divided, out_sharding=outs)(*args)

    mapped = custom_vmap(automatic)
    mapped.def_vmap(_mapping(mapped, direction, masks))
    return mapped


def _mapping(operator: Callable[..., Any], direction: _Direction, masks: int) -> Callable[..., Any]:
    """The rule for a mapped dimension: it joins the first one. Where tables of score functions or seeds are mapped, or
    gradients of tables are wanted, one element follows the other.
    """
    tensors = len(direction.given)

    def rule(size: int, mapped: list[bool], *args: Array) -> tuple[Any, Any]:
        if any(mapped[len(args) - masks :]) and masks:
            raise UnsupportedError(
                "jax.vmap over a planned mask", "the loops of one call follow one mask",
                "use jax.lax.scan or jax.lax.map over the masks, or weft.per_batch([...]) for a mask of each batch row",
            )  # fmt: skip
        if any(mapped[tensors:]) or any(direction.wanted):
            found = one_by_one(operator, size, mapped, args)
            return found, (True,) * len(found)
        counted = tensors - len(NUMBERS) * direction.call.how.by_pairs
        folded = []
        for x, is_mapped in zip(args[:counted], mapped, strict=False):
            every = x if is_mapped else jnp.broadcast_to(x[None], (size, *x.shape))
            folded.append(every.reshape(size * every.shape[1], *every.shape[2:]))
        found = operator(*folded, *args[counted:])
        return tuple(x.reshape(size, x.shape[0] // size, *x.shape[1:]) for x in found), (True,) * len(found)

    return rule


def one_by_one(function: Callable[..., Any], size: int, mapped: Sequence[bool], args: Sequence[Array]) -> Any:
    """A function of each mapped element, one after the other."""

    def one(at: Array) -> Any:
        return function(*(
            lax.dynamic_index_in_dim(x, at, keepdims=False) if is_mapped else x
            for x, is_mapped in zip(args, mapped, strict=True)
        ))  # fmt: skip

    return lax.map(one, jnp.arange(size, dtype=jnp.int32))
