"""Tokens of an array as a loop sees them: a grid of (position, phase) on every axis, or the tokens of a list.

Arrays here are (..., tokens, d) or (..., tokens); `lead` says how many dimensions come before the tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import jax.numpy as jnp
from jax import Array, lax


@dataclass(frozen=True)
class View:
    """`prod(sizes)` tokens from `origin` on as a grid, axis by axis as (position, phase) modulo `steps`.

    listed: a table of tokens is given instead, one axis of them.
    """

    origin: int
    sizes: tuple[int, ...]
    steps: tuple[int, ...]
    listed: bool = False

    @property
    def _whole(self) -> tuple[int, ...]:
        """The sizes, rounded up to multiples of the steps."""
        return tuple(-(-size // step) * step for size, step in zip(self.sizes, self.steps, strict=True))

    @property
    def shape(self) -> tuple[int, ...]:
        """(positions, phases) of each axis."""
        pairs = zip(self._whole, self.steps, strict=True)
        return tuple(x for size, step in pairs for x in (size // step, step))

    def of(self, x: Array, lead: int, tokens: Array | None = None) -> Array:
        """x in this view: (..., position, phase, position, phase, ..., d)."""
        head, tail = x.shape[:lead], x.shape[lead + 1 :]
        if self.listed:
            x = jnp.take(x, tokens, axis=lead, mode="fill", fill_value=0)
        else:
            x = lax.slice_in_dim(x, self.origin, self.origin + prod(self.sizes), axis=lead)
            x = _resized(x.reshape(*head, *self.sizes, *tail), lead, self.sizes, self._whole)
        return x.reshape(*head, *self.shape, *tail)

    def put(self, x: Array, view: Array, lead: int, tokens: Array | None = None) -> Array:
        """x with the tokens of a view as they are there."""
        head, tail = x.shape[:lead], x.shape[lead + 1 :]
        view = view.reshape(*head, *self._whole, *tail)
        if self.listed:
            return x.at[(*(slice(None),) * lead, tokens)].set(view, mode="drop")
        view = _resized(view, lead, self._whole, self.sizes).reshape(*head, prod(self.sizes), *tail)
        if view.shape == x.shape:
            return view
        return lax.dynamic_update_slice_in_dim(x, view, self.origin, lead)

    def tile(self, view: Array, lead: int, at: Places, sizes: tuple[int, ...]) -> Array:
        """Some neighbouring positions of one phase of a view: (..., prod(sizes), d). sizes: positions of each axis."""
        head, tail = view.shape[:lead], view.shape[lead + len(self.shape) :]
        found = lax.dynamic_slice(view, self._starts(view, lead, at), (*head, *_spread(sizes), *tail))
        return found.reshape(*head, prod(sizes), *tail)

    def put_tile(self, view: Array, tile: Array, lead: int, at: Places, sizes: tuple[int, ...]) -> Array:
        """The view with such a tile put in its place."""
        head, tail = view.shape[:lead], view.shape[lead + len(self.shape) :]
        tile = tile.reshape(*head, *_spread(sizes), *tail)
        return lax.dynamic_update_slice(view, tile, self._starts(view, lead, at))

    def indices(self, at: Places, sizes: tuple[int, ...], tokens: Array | None = None) -> Array:
        """The token of every place of a tile, (prod(sizes),)."""
        if tokens is not None:
            return lax.dynamic_slice_in_dim(tokens, at[0][1], sizes[0])
        found = jnp.zeros(1, jnp.int32)
        for (phase, first), size, step, length in zip(at, sizes, self.steps, self.sizes, strict=True):
            axis = (first + jnp.arange(size, dtype=jnp.int32)) * step + phase
            found = (found[:, None] * length + axis).reshape(-1)
        return found + self.origin

    def _starts(self, view: Array, lead: int, at: Places) -> list[Any]:
        zero = jnp.int32(0)
        inner = [x for phase, first in at for x in (first, phase)]
        return [zero] * lead + inner + [zero] * (view.ndim - lead - len(inner))


Places = tuple[tuple[Array, Array], ...]  # of each axis (phase, first position)


def _spread(sizes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(x for size in sizes for x in (size, 1))


def _resized(x: Array, lead: int, old: tuple[int, ...], new: tuple[int, ...]) -> Array:
    """Each axis from `lead` on cut off, or padded with zeros."""
    if old == new:
        return x
    changes = [(0, 0, 0)] * lead + [(0, b - a, 0) for a, b in zip(old, new, strict=True)]
    changes += [(0, 0, 0)] * (x.ndim - len(changes))
    return lax.pad(x, jnp.zeros((), x.dtype), changes)
