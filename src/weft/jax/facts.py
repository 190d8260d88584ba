"""What JAX can use on this machine, for `weft doctor`."""

from __future__ import annotations

from typing import Any

import jax

from weft.errors import UnsupportedKernel
from weft.jax.implementations import IMPLEMENTATIONS, Request, choose
from weft.planning.problem import Problem


def facts() -> dict[str, Any]:
    """platform: what JAX computes on by default; devices; of each implementation what speaks against it, or None."""
    request = Request(Problem(1, 1, 1, 128, 128, 64, 64), jax.default_backend())
    found: dict[str, Any] = {}
    for name in IMPLEMENTATIONS:
        try:
            choose((name,), request)
            found[name] = None
        except UnsupportedKernel as refused:
            found[name] = {"why": refused.wrong.removeprefix(f"{name}: "), "cure": refused.cure}
    return {
        "platform": request.platform,
        "devices": [device.device_kind for device in jax.devices()],
        "implementations": found,
    }
