"""Score functions: what is done to a score before the soft maximum, as a small expression over (score, b, h, q, k) and
captured tables. Its meaning is in numpy; every backend emits it.
"""

from __future__ import annotations

from weft.score.value import Score

__all__ = ["Score"]
