"""The peers: one module for each library, one small adapter for each way to run it.

`all_peers()` lists them; no library is imported before its peer is prepared.
"""

from __future__ import annotations

from weft.bench.peers.base import Peer


def all_peers() -> dict[str, Peer]:
    """Every adapter by name, weft's first."""
    from weft.bench.peers import (
        ceilings,
        cudnn_flex,
        fa4,
        flashinfer,
        flex,
        natten,
        planning,
        sdpa,
        slices,
        weft,
        xformers,
    )

    modules = (weft, sdpa, slices, flex, fa4, natten, xformers, flashinfer, cudnn_flex, ceilings, planning)
    return {peer.name: peer for module in modules for peer in module.peers()}
