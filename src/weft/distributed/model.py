"""What an exchange and the work take: a model of a machine, by which strategies are compared. Seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from weft.pattern.bounds import Ints

if TYPE_CHECKING:
    from weft.distributed.plan import Heads


@dataclass(frozen=True)
class Link:
    """Ranks and what joins them. node: ranks of one node; inside, between: bytes a second that a rank receives inside
    its node and from others; latency: seconds of an exchange with one peer; rate: operations a second of a rank.

    inside and latency are those of four H200 that pack rows, send them and put them together
    (`benchmarks/scale_out.py`). NCCL alone reached 346 GB/s. between is assumed.
    """

    node: int = 8
    inside: float = 240e9
    between: float = 50e9
    latency: float = 17e-6
    rate: float = 450e12


@dataclass(frozen=True)
class Cost:
    """Of the slowest rank: seconds of work and of the exchange, nothing overlapped."""

    work: float
    exchange: float

    @property
    def total(self) -> float:
        return self.work + self.exchange


def cost_of(received: Ints, work: Ints, heads: Heads, link: Link, phases: int) -> Cost:
    """received: bytes by [rank, peer]; work: live pairs of a rank; phases: exchanges that follow each other."""
    ranks = np.arange(len(received))
    near = np.equal.outer(ranks // link.node, ranks // link.node)

    def seconds(nbytes: Ints) -> np.ndarray:
        return np.maximum((nbytes * near).sum(axis=1) / link.inside, (nbytes * ~near).sum(axis=1) / link.between)

    peers = ((received > 0) | (received.T > 0)).sum(axis=1)
    hops = phases * link.latency * np.ceil(np.log2(peers + 1))
    exchange = np.maximum(seconds(received), seconds(received.T)) + hops
    return Cost(
        float(work.max(initial=0)) * 2 * (heads.d + heads.dv) * heads.q / link.rate, float(exchange.max(initial=0))
    )
