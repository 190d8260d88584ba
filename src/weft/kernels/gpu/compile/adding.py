"""Stores of boxes that add: Gluon of Triton 3.6 and 3.7 has no reducing copy by a tensor descriptor, and PTX has.

A kernel stores boxes by descriptors as if each were alone. Its PTX is rewritten before it is assembled, so that every
such store adds to memory instead. The two instructions take the same operands.
"""

from __future__ import annotations

import re

from weft.errors import UnsupportedKernel

STORE = re.compile(r"\bcp\.async\.bulk\.tensor\.(\d)d\.global\.shared::cta\.bulk_group\b")
ADD = r"cp.reduce.async.bulk.tensor.\1d.global.shared::cta.add.tile.bulk_group"


def rewritten(ptx: str) -> str:
    """PTX whose stores of boxes add. Raises UnsupportedKernel where there are none, so that none is left as it was."""
    found, count = STORE.subn(ADD, ptx)
    if not count:
        raise UnsupportedKernel(
            "a kernel that adds boxes to memory", "Triton wrote no store of a box that is known",
            "use Triton 3.6 or 3.7, or deterministic=True",
        )  # fmt: skip
    return found
