"""Attention over a sequence that the devices of a mesh axis hold together, inside `jax.shard_map`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import NDArray

from weft.distributed.local import Part, whole_of
from weft.distributed.plan import Plan, planned
from weft.errors import InputError, OptionError
from weft.jax.attention import attention
from weft.pattern.algebra import Pattern
from weft.pattern.bounds import Ints

STRATEGIES = ("halo", "ulysses", "all-gather")
TOKENS = {"bshd": 1, "bhsd": 2}  # the axis of tokens by layout
HEADS = {"bshd": 2, "bhsd": 1}


def distributed_attention(  # noqa: PLR0913 - the public face; every option by name
    q: Any, k: Any, v: Any, pattern: Pattern, *, axis_name: str, shards: Any = "contiguous",
    strategy: str | None = None, layout: str = "bshd", sinks: Any = None, return_lse: bool = False, **options: Any,
) -> Any:  # fmt: skip
    """`weft.jax.attention` of a sequence that is divided over an axis of a mesh; called inside `jax.shard_map`.

    q, k, v: this device's tokens, (B, S, H, D) or as `layout` says. pattern: on the indices of the whole sequence.
    axis_name: the axis of the mesh that the sequence is divided over. shards: "contiguous", "zigzag", "boxes", "2x4",
    or ranges of equal sizes, see `weft.distributed.plan`; arrays hold the shards one by one. strategy: "halo" (keys by
    one `ppermute` a hop, padded to the largest), "ulysses" (heads by `all_to_all`), "all-gather". None takes the one
    that is predicted to take least time. Other options are those of `weft.jax.attention`.

    Returns out for this device's tokens; with return_lse also lse. Gradients flow back to the devices that hold keys.
    Raises InputError and OptionError for what does not fit. Example::

        f = lambda q, k, v: weft.jax.distributed_attention(q, k, v, weft.causal(), axis_name="sequence")
        out = jax.shard_map(f, mesh=mesh, in_specs=(P(None, "sequence"),) * 3, out_specs=P(None, "sequence"))(q, k, v)
    """
    if layout not in TOKENS:
        raise OptionError(
            f"distributed_attention(layout={layout!r})", f"it is none of {', '.join(TOKENS)}", "pass one of them"
        )
    if strategy is not None and strategy not in STRATEGIES:
        raise OptionError(
            f"distributed_attention(strategy={strategy!r})", f"JAX has {', '.join(STRATEGIES)}", "pass one, or None"
        )
    plan = _planned((q, k, v), pattern, layout, axis_name, shards)
    plan = plan.among(STRATEGIES if strategy is None else (strategy,))
    way = _by_heads if plan.strategy == "ulysses" else _by_tokens
    given = {**options, "layout": layout, "return_lse": return_lse}
    return way(plan, (q, k, v), axis_name, {**given, "sinks": sinks})


def _planned(tensors: tuple[Any, Any, Any], pattern: Pattern, layout: str, axis_name: str, shards: Any) -> Plan:
    """The plan of the whole sequence, whose shards are of one size."""
    q, k, v = tensors
    ranks, tokens, heads = lax.axis_size(axis_name), q.shape[TOKENS[layout]], HEADS[layout]
    found = planned(
        pattern, ranks * tokens, heads=(q.shape[heads], k.shape[heads]), head_dim=(q.shape[-1], v.shape[-1]),
        dtype=str(q.dtype), ranks=ranks, shards=shards,
    )  # fmt: skip
    sizes = {len(held) for held in found.shards.tokens}
    if sizes != {tokens}:
        raise InputError(
            "distributed_attention(q, k, v)", f"devices hold {tokens} tokens each, shards {sorted(sizes)}",
            "pass shards of one size: XLA divides arrays evenly",
        )  # fmt: skip
    return found


# ---- keys travel -----------------------------------------------------------------------------------------------------
def _by_tokens(plan: Plan, tensors: tuple[Any, Any, Any], axis_name: str, options: dict[str, Any]) -> Any:
    """Keys come, a hop at a time; then each device runs the branch of its rank. Equal branches are one."""
    q, k, v = tensors
    at = TOKENS[options["layout"]]
    both = jnp.concatenate([k, v], axis=-1)
    blocks, firsts, size = [both], {}, both.shape[at]
    for hop in range(1, plan.ranks):
        sent = [plan.halo[(p + hop) % plan.ranks][p] for p in range(plan.ranks)]
        most = max(map(len, sent))
        if most:
            blocks.append(_hop(both, _padded(plan, sent, most), hop, axis_name, at))
            firsts[hop] = size
            size += most
    zero = jnp.zeros_like(lax.slice_in_dim(both, 0, 1, axis=at))
    keys = jnp.concatenate([*blocks, zero], axis=at)
    parts = [_Branch(plan, rank, firsts, size) for rank in range(plan.ranks)]
    kinds, which = _distinct(parts)
    runs = [one.run(k.shape[-1], at, options) for one in kinds]
    if len(runs) == 1:
        return runs[0](q, keys)
    return lax.switch(jnp.asarray(which)[lax.axis_index(axis_name)], runs, q, keys)


def _padded(plan: Plan, sent: list[Any], most: int) -> NDArray[np.int32]:
    """(ranks, most): which of its rows each rank sends, its first ones again where there are fewer."""
    found = np.zeros((plan.ranks, most), np.int32)
    for rank, tokens in enumerate(sent):
        found[rank, : len(tokens)] = plan.shards.tokens[rank].places(tokens)
    return found


def _hop(x: Array, rows: NDArray[np.int32], hop: int, axis_name: str, at: int) -> Array:
    """Rows of every rank at the rank `hop` further on."""
    mine = jnp.asarray(rows)[lax.axis_index(axis_name)]
    ranks = len(rows)
    return lax.ppermute(jnp.take(x, mine, axis=at), axis_name, [(p, (p + hop) % ranks) for p in range(ranks)])


class _Branch:
    """What one rank computes. keys: the place of each of its keys among what it holds and what arrived."""

    def __init__(self, plan: Plan, rank: int, firsts: dict[int, int], size: int) -> None:
        self.part: Part = whole_of(plan, rank)
        held = len(plan.shards.tokens[rank])
        self.shape = held, held
        self.keys: Ints = np.arange(held)
        if isinstance(self.part.keys, str):
            return
        # places count peers one after the other; arrays here have hops, padded
        moved, at = [np.arange(held)], held
        for peer, tokens in enumerate(plan.halo[rank]):
            first = firsts.get((rank - peer) % plan.ranks, 0)
            moved.append(first + np.arange(len(tokens)))
            at += len(tokens)
        self.keys = np.concatenate([*moved, [size]])[self.part.keys]
        self.shape = held, self.keys.size

    def same(self, other: _Branch) -> bool:
        """Whether both compute the same of the same places."""
        if self.shape != other.shape or not np.array_equal(self.keys, other.keys):
            return False
        return self.part.pattern.acsr(*self.shape) == other.part.pattern.acsr(*other.shape)

    def run(self, d: int, at: int, options: dict[str, Any]) -> Callable[[Array, Array], Any]:
        """Attention of the rank's rows over its keys."""

        def compute(q: Array, keys: Array) -> Any:
            first, size = int(self.keys[0]) if self.keys.size else 0, self.keys.size
            if (np.diff(self.keys) == 1).all():
                some = lax.slice_in_dim(keys, first, first + size, axis=at)
            else:
                some = jnp.take(keys, jnp.asarray(self.keys), axis=at)
            return attention(q, some[..., :d], some[..., d:], self.part.pattern, **options)

        return compute


def _distinct(branches: list[_Branch]) -> tuple[list[_Branch], list[int]]:
    """(those that differ, for each rank which of them is its own)."""
    kinds: list[_Branch] = []
    which = []
    for one in branches:
        found = [i for i, kind in enumerate(kinds) if kind.same(one)]
        which.append(found[0] if found else len(kinds))
        kinds += [] if found else [one]
    return kinds, which


# ---- heads travel ----------------------------------------------------------------------------------------------------
def _by_heads(plan: Plan, tensors: tuple[Any, Any, Any], axis_name: str, options: dict[str, Any]) -> Any:
    """Each device has all tokens of some heads; key heads that several devices read are repeated."""
    at, heads = TOKENS[options["layout"]], HEADS[options["layout"]]
    q, k, v = tensors
    few = k.shape[heads]
    if few < plan.ranks:
        k, v = (jnp.repeat(x, plan.ranks // few, axis=heads) for x in (k, v))
    order = np.concatenate([held.array() for held in plan.shards.tokens])
    sorted_ = bool((np.diff(order) == 1).all())

    def there(x: Array) -> Array:
        found = lax.all_to_all(x, axis_name, heads, at, tiled=True)
        return found if sorted_ else jnp.take(found, jnp.asarray(np.argsort(order)), axis=at)

    def back(x: Array) -> Array:
        found = x if sorted_ else jnp.take(x, jnp.asarray(order), axis=at)
        return lax.all_to_all(found, axis_name, at, heads, tiled=True)

    own = q.shape[heads] // plan.ranks
    sinks = options.pop("sinks")
    if sinks is not None:
        sinks = lax.dynamic_slice_in_dim(jnp.asarray(sinks), lax.axis_index(axis_name) * own, own)
    found = attention(there(q), there(k), there(v), plan.pattern, sinks=sinks, **options)
    return jax.tree.map(back, found)
