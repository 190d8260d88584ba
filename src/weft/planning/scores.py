"""The numbers that every score is multiplied by and capped at: what a front end may be given."""

from __future__ import annotations

from typing import Any

from weft.errors import OptionError

LARGEST = 1e38  # of a number that kernels multiply by, in float32


def check_scores(scale: Any, softcap: Any) -> None:
    """Raise OptionError unless scale, softcap and scale / softcap lie within LARGEST and softcap is positive.

    Either may be None, or a symbolic float of torch.
    """
    if scale is not None and not -LARGEST <= scale <= LARGEST:  # false for nan; works for torch's symbolic floats
        wrong = f"the scale is not a finite number within {LARGEST}"
        raise OptionError(f"attention(scale={scale})", wrong, "pass a smaller scale, or None for D ** -0.5")
    if softcap is not None and not 0 < softcap <= LARGEST:
        wrong = f"a soft cap is a positive finite number, up to {LARGEST}"
        raise OptionError(f"attention(softcap={softcap})", wrong, "pass softcap > 0, or None for none")
    # beyond float32, kernels would multiply a score of 0 by infinity
    if softcap is not None and (1 if scale is None else max(1, abs(scale))) > softcap * LARGEST:
        wrong = f"the scale or 1, divided by the soft cap, is beyond {LARGEST}"
        asked = f"attention(scale={scale}, softcap={softcap})"
        raise OptionError(asked, wrong, "pass a larger softcap, or None for none")
