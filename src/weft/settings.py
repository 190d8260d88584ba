"""The few things that the environment decides: nothing else on the way to a result reads it."""

from __future__ import annotations

import os


def interpreted() -> bool:
    """Whether Triton interprets kernels on the CPU (TRITON_INTERPRET=1, to be set before triton is imported)."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"
