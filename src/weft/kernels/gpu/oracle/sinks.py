"""Sinks beside attention's own kernels: they join finished rows, and have a gradient."""

from __future__ import annotations

import numpy as np

from weft.kernels.gpu.oracle.laws import law
from weft.kernels.gpu.oracle.memory import Call
from weft.kernels.gpu.sinks import JOINED, PROGRAMS, TILE


def join_sinks(call: Call) -> None:
    """Lse gains the sinks, Out is scaled by what remains of each row."""
    rows, heads, length = (call.integer(name) for name in ("rows", "heads", "length"))
    for program in range(call.grid[0]):
        number = np.arange(program * JOINED, min(rows, program * JOINED + JOINED))
        batch, head, row = number // length // heads, number // length % heads, number % length
        lse, sink = call.flat("Lse").load(number), call.flat("Sinks").load(head)
        total = np.logaddexp(lse, sink)
        share = np.exp(np.where(lse == -np.inf, -np.inf, lse - total))
        out = call.tensor("Out").load(batch, head, row)
        call.tensor("Out").store(out * share[:, None], batch, head, row)
        call.flat("Lse").store(total, number)


def gradient(call: Call) -> None:
    """Sums of -(share of the sink in a row) * delta, one or several for each head."""
    batch, heads, length = (call.integer(name) for name in ("batch", "heads", "length"))
    parts, tiles = call.grid[1], -(-length // TILE)
    law(call.grid[0] == heads, "every head has a program")
    for head in range(heads):
        for part in range(parts):
            total = 0.0
            for tile in range(part, batch * tiles, parts):
                row = np.arange(tile % tiles * TILE, min(length, tile % tiles * TILE + TILE))
                at = (tile // tiles * heads + head) * length + row
                lse, delta = call.flat("Lse").load(at), call.flat("Delta").load(at)
                with np.errstate(invalid="ignore"):  # of a row without keys or sink
                    share = np.exp(np.minimum(call.flat("Sinks").load(head) - lse, 0.0))
                total += float(np.where(lse == -np.inf, 0.0, share * delta).sum())
            call.flat("Sums").store(np.array(-total), head * parts + part)


def gradient_sum(call: Call) -> None:
    """The sums of each head as one."""
    parts = call.integer("parts")
    law(parts <= PROGRAMS, "a head has more sums than are read")
    for head in range(call.grid[0]):
        call.flat("Total").store(np.array(call.flat("Sums").load(head * parts + np.arange(parts)).sum()), head)
