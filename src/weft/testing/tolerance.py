"""The one tolerance policy: how far a result may be from the truth.

The truth is computed in float64 from the same rounded inputs. The plain result is the dense one in the inputs' own
dtype. A result may be off by `c` times what the plain one is off by, plus `floor` times the largest number about. A
plain error may be nothing by luck, and in float64 it is nothing by definition. Errors are the largest absolute ones
over a tensor. Test data are of unit order (normal variates), so the largest number about is never taken to be less than
1.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Allowed(NamedTuple):
    """c times the plain error, plus floor times the largest number about."""

    c: float
    floor: float


WIDE = {"float64": 2.0**-52, "float32": 2.0**-23}  # units in the last place of 1
NARROW = {"bfloat16": 2.0**-7, "float16": 2.0**-10}
SINGLE = WIDE["float32"]
TF32 = 2.0**-10

# By quantity and by dtype of the inputs. One reason for each row.
TABLE: dict[tuple[str, str], Allowed] = {
    # One dtype throughout and the same sums in another order; tiles of keys merged by lse round a few times more.
    **{(name, dtype): Allowed(4, 32 * unit) for name in ("out", "lse", "dv") for dtype, unit in WIDE.items()},
    # dS = P * (dO V^T - delta): a difference of two sums over Dv, which autograd takes of two equal numbers. In a row
    # of one key the plain result is exactly 0, the tiled one the rounding of sums much larger than 1.
    **{(name, dtype): Allowed(4, 64 * unit) for name in ("dq", "dk") for dtype, unit in WIDE.items()},
    # One number per head from all rows and keys: a plain error small by luck is likelier than among many numbers.
    **{("dsinks", dtype): Allowed(4, 64 * unit) for dtype, unit in WIDE.items()},
    # Plain rounds scores, probabilities and their gradients to 16 bits, a tiled computation at most the probabilities
    # and its results (half a unit). The backward starts from the rounded out, which plain does not.
    **{(name, dtype): Allowed(2, unit) for name in ("out", "dq", "dk", "dv") for dtype, unit in NARROW.items()},
    # Kept in float32 from sums in float32, while plain has 16 bits.
    **{("lse", dtype): Allowed(0.01, 16 * SINGLE) for dtype in NARROW},
    # delta comes of the rounded out, so that every row is off by up to half a unit of 16 bits; and luck, as above.
    **{("dsinks", dtype): Allowed(4, 2 * unit) for dtype, unit in NARROW.items()},
    # Of a table, each entry may be a sum over all pairs; rounded as sums of rows are, and luck, as above.
    **{("dtable", dtype): Allowed(4, 256 * unit) for dtype, unit in WIDE.items()},
    **{("dtable", dtype): Allowed(4, 4 * unit) for dtype, unit in NARROW.items()},
    # Products whose operands tensor cores cut to 10 bits, towards zero, which plain's do not; sums in float32. Every
    # score is too small then. What comes of it is off by up to 2.4 units (simulated, D 8 to 256, 60 to 500 tokens).
    **{(name, "tf32"): Allowed(4, 4 * TF32) for name in ("out", "lse", "dq", "dk", "dv", "dsinks")},
}


def assert_close(name: str, got: Any, reference: Any, plain: Any, tf32: bool = False) -> None:
    """Raise AssertionError unless `got` is as near to `reference` as the policy asks.

    name: a quantity of TABLE, perhaps after words of one's own ("second call: dq"). got: a tensor or an array.
    reference: the truth in float64. plain: the plain computation, in the dtype of the inputs. tf32: products
    of float32 were to be in it, but plain's. All of one shape; where the truth is infinite, `got` must be the same
    infinity.
    """
    x, truth, other = _float64(got), _float64(reference), _float64(plain)
    assert x.shape == truth.shape == other.shape, f"{name}: shapes {x.shape}, {truth.shape}, {other.shape}"
    if not x.size:
        return
    error, plain_error = _error(x, truth), float(_error(other, truth).max())
    assert np.isfinite(plain_error), f"{name}: the plain computation overflows, so it measures nothing; take other data"
    rule = TABLE[name.rsplit(maxsplit=1)[-1], "tf32" if tf32 else _dtype(plain)]
    limit = _limit(rule, truth, plain_error)
    if error.max() <= limit:
        return
    worst = tuple(int(i) for i in np.unravel_index(error.argmax(), error.shape))
    raise AssertionError(
        f"{name} is off by {error[worst]:.3g} at {worst}: {x[worst]:.6g}, should be {truth[worst]:.6g}.\n"
        f"  The plain {_dtype(plain)} computation is off by at most {plain_error:.3g}.\n"
        f"  Allowed is {limit:.3g}, with c = {rule.c:g} and a floor of {rule.floor:.3g}.\n"
        f"  {int((error > limit).sum())} of {error.size} are beyond it"
    )


def _limit(rule: Allowed, truth: NDArray[np.float64], plain_error: float) -> float:
    """The largest error allowed."""
    largest = float(np.abs(truth[np.isfinite(truth)]).max(initial=1.0))
    return rule.c * plain_error + rule.floor * largest


def _error(x: NDArray[np.float64], truth: NDArray[np.float64]) -> NDArray[np.float64]:
    """|x - truth|: 0 where both are the same infinity, infinite where only one is or where x is not a number."""
    with np.errstate(invalid="ignore"):
        error = np.where(x == truth, 0.0, np.abs(x - truth))
    return np.where(np.isnan(error), np.inf, error)


def _float64(x: Any) -> NDArray[np.float64]:
    """A tensor of torch (bfloat16 included) or anything that numpy reads."""
    return x.detach().cpu().double().numpy() if hasattr(x, "detach") else np.asarray(x, np.float64)


def _dtype(x: Any) -> str:
    return str(x.dtype).removeprefix("torch.")
