"""The differentiable operator: custom_vjp(custom_vmap(custom_partitioning(blocks))), of both directions.

Each of the three has no rule for the other two, so their order matters: derivatives are taken first, then dimensions
are mapped, then the program is divided among devices. Arrays are (L, B, K, G, M, D) of queries and (L, B, K, N, D) of
keys; L counts mapped elements.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_batching import custom_vmap
from jax.sharding import PartitionSpec, auto_axes

from weft.errors import UnsupportedError
from weft.jax.arrays import varying
from weft.jax.backward import backward
from weft.jax.forward import forward
from weft.jax.partition import explicit_specs, partitioned
from weft.jax.scores import Scoring
from weft.jax.structure import Structure

FORWARD = ("q", "k", "k"), ("q", "row")
BACKWARD = ("q", "k", "k", "q", "row", "q", "row"), ("q", "k", "k")


@dataclass(frozen=True)
class Call:
    """What is static about one call. kind: the dtype of out."""

    structure: Structure
    how: Scoring
    kind: str


def attend(call: Call, q: Array, k: Array, v: Array, slopes: Array | None, tables: Any) -> tuple[Array, Array]:
    """(out (L, B, K, G, M, Dv), lse (L, B, K, G, M)). slopes: (L, K, G) or None."""
    q, k, v, slopes, tables = varying((q, k, v, slopes, tables))
    return _attend(call, q, k, v, slopes, tables)


def _forward(call: Call, q: Array, k: Array, v: Array, slopes: Array | None, tables: Any) -> tuple[Array, Array]:
    return _apply(call, True, (q, k, v), slopes, tables)


def _saved(call: Call, q: Any, k: Any, v: Any, slopes: Any, tables: Any) -> Any:
    check_slopes(slopes)
    q, k, v, slopes, tables = jax.tree.map(lambda x: x.value, (q, k, v, slopes, tables), is_leaf=is_primal)
    out, lse = _attend(call, q, k, v, slopes, tables)
    return (out, lse), (q, k, v, out, lse, slopes, tables)


def check_slopes(slopes: Any) -> None:
    """Raise UnsupportedError if slopes, an argument of a rule of jax.custom_vjp, are differentiated by."""
    if slopes is not None and slopes.perturbed:
        raise UnsupportedError(
            "attention(alibi_slopes=...) under jax.grad", "gradients of ALiBi slopes are not implemented",
            "pass jax.lax.stop_gradient(slopes)",
        )  # fmt: skip


def is_primal(x: Any) -> bool:
    """Whether x is an argument as such rules get it."""
    return isinstance(x, jax.custom_derivatives.CustomVJPPrimal)


def is_zero(x: Any) -> bool:
    """Whether a cotangent is zero for certain, so that nothing need be computed of it."""
    return isinstance(x, jax.custom_derivatives.SymbolicZero)


def _gradients(call: Call, saved: Any, given: Any) -> Any:
    q, k, v, out, lse, slopes, tables = saved
    dout, dlse = (_dense(x, like) for x, like in zip(given, (out, lse), strict=True))
    found = _gradients_once(call, (q, k, v, out, lse, dout, dlse), slopes, tables)
    return *found, None if slopes is None else jnp.zeros_like(slopes), None


def _dense(x: Any, like: Array) -> Array:
    return jnp.zeros_like(like) if is_zero(x) else x


_attend = jax.custom_vjp(_forward, nondiff_argnums=(0,))
_attend.defvjp(_saved, _gradients, symbolic_zeros=True)


def _backward(call: Call, tensors: tuple[Array, ...], slopes: Array | None, tables: Any) -> tuple[Array, ...]:
    return _apply(call, False, tensors, slopes, tables)


def _twice(*args: Any) -> Any:
    raise UnsupportedError(
        "a second derivative of attention", "only the first derivative, in reverse mode, is implemented",
        "take it of dense attention, as jax.nn.dot_product_attention",
    )  # fmt: skip


_gradients_once = jax.custom_vjp(_backward, nondiff_argnums=(0,))
_gradients_once.defvjp(_twice, _twice)


# ---- mapped dimensions, devices --------------------------------------------------------------------------------------
def _apply(call: Call, is_forward: bool, tensors: tuple[Array, ...], slopes: Array | None, tables: Any) -> Any:
    leaves, tree = jax.tree.flatten(tables)
    ranks = tuple(x.ndim for x in leaves)
    given = tensors if slopes is None else (*tensors, slopes)
    return _operator(call, is_forward, slopes is not None, tree, ranks)(*given, *leaves)


@lru_cache(maxsize=256)
def _operator(call: Call, is_forward: bool, sloped: bool, tree: Any, ranks: tuple[int, ...]) -> Callable[..., Any]:
    given, made = FORWARD if is_forward else BACKWARD
    given = (*given, "slopes") if sloped else given

    def blocks(*args: Array) -> tuple[Array, ...]:
        tensors, slopes = args[: len(given)], None
        if sloped:
            *tensors, slopes = tensors  # type: ignore[assignment]
        tables = jax.tree.unflatten(tree, args[len(given) :])
        if is_forward:
            return forward(tuple(tensors), slopes, call.structure, tables, call.how, call.kind)
        return backward(tuple(tensors[:3]), tuple(tensors[3:]), slopes, call.structure, tables, call.how)

    divided = partitioned(blocks, given, made, ranks, call.structure)

    def automatic(*args: Array) -> Any:
        """Inside, mesh axes are automatic: the operator's own rule divides it, not the rules of its loops."""
        specs = explicit_specs(args[: len(given)], given)
        if all(axis is None for spec in specs for axis in spec):
            return divided(*args)
        query = PartitionSpec(*specs[0][:5])
        outs = (query, query) if is_forward else tuple(specs[:3])
        return auto_axes(divided, out_sharding=outs)(*args)

    mapped = custom_vmap(automatic)
    mapped.def_vmap(_mapping(mapped, len(given)))
    return mapped


def _mapping(operator: Callable[..., Any], tensors: int) -> Callable[..., Any]:
    """The rule for a mapped dimension: it joins the first one."""

    def rule(size: int, mapped: list[bool], *args: Array) -> tuple[Any, Any]:
        if any(mapped[tensors:]):
            raise UnsupportedError(
                "jax.vmap over a planned mask", "the loops of one call follow one mask",
                "use jax.lax.scan or jax.lax.map over the masks, or weft.per_batch([...]) for a mask of each batch row",
            )  # fmt: skip
        folded = []
        for x, is_mapped in zip(args[:tensors], mapped, strict=False):
            every = x if is_mapped else jnp.broadcast_to(x[None], (size, *x.shape))
            folded.append(every.reshape(size * every.shape[1], *every.shape[2:]))
        found = operator(*folded, *args[tensors:])
        return tuple(x.reshape(size, x.shape[0] // size, *x.shape[1:]) for x in found), (True,) * len(found)

    return rule
