"""The one tolerance policy: how far a result may be from the truth.

The truth is computed in float64 from the same rounded inputs. A result may be off by C times what the plain dense
computation in the inputs' own dtype is off by, plus FLOOR units in the last place of the largest number about, since a
plain error may be zero by luck. Errors are largest absolute ones over a tensor. Test data are of unit order (normal
variates), hence "the largest number about" is never less than 1: terms of that size cancel in gradients.

Measured on all conformance cases, the CPU backend needs at most half of each C or FLOOR.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

# quantity -> C by dtype of the inputs. Where one row serves several quantities they have one reason.
SAME = {"float64": 4.0, "float32": 4.0}
C: dict[str, dict[str, float]] = {
    # Same dtype throughout, another order of the same sums; tiles of keys merged by lse round a few times more.
    # 16 bits: the plain computation rounds scores and probabilities, a tiled one at most the probabilities.
    "out": SAME | {"bfloat16": 2.0, "float16": 2.0},
    # 16 bits: kept in float32 from float32 sums, while the plain one is rounded to 16 bits.
    "lse": SAME | {"bfloat16": 0.1, "float16": 0.1},
    # dS = P * (dO V^T - delta) with delta = rowsum(dO * O) from the rounded O, where autograd uses its own unrounded sum.
    "dq": SAME | {"bfloat16": 2.0, "float16": 2.0},
    "dk": SAME | {"bfloat16": 2.0, "float16": 2.0},
    "dv": SAME | {"bfloat16": 2.0, "float16": 2.0},
    # One number per head from all rows and keys: a plain error small by luck is likelier than among many numbers.
    "dsinks": {"float64": 16.0, "float32": 16.0, "bfloat16": 4.0, "float16": 4.0},
}
# Units in the last place of the result's own dtype. 16 bits: sums are in float32 and rounded once, half a unit.
FLOOR = {"float64": 16.0, "float32": 16.0, "bfloat16": 1.0, "float16": 1.0}
EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}


def assert_close(name: str, got: Any, reference: Any, plain: Any) -> None:
    """Raise AssertionError unless `got` is as near to `reference` as the policy asks.

    name: a quantity of C, perhaps after words of one's own ("case 3: dq"). got: a tensor or array. reference: the truth
    in float64. plain: the plain computation, in the dtype of the inputs. All of one shape; infinities must be equal.
    """
    quantity = name.split()[-1]
    dtype, stored = _dtype(plain), _dtype(got)
    x, truth, other = _float64(got), _float64(reference), _float64(plain)
    assert x.shape == truth.shape == other.shape, f"{name}: shapes {x.shape}, {truth.shape}, {other.shape}"
    if not x.size:
        return
    error, finite = _error(x, truth), np.isfinite(truth)
    allowed_plain = float(_error(other, truth)[finite].max(initial=0.0))
    largest = max(1.0, float(np.abs(truth[finite]).max(initial=0.0)))
    c, floor = C[quantity][dtype], FLOOR[stored] * EPS[stored] * largest
    if error.max() <= c * allowed_plain + floor:
        return
    worst = tuple(int(i) for i in np.unravel_index(error.argmax(), error.shape))
    raise AssertionError(
        f"{name} is off by {error[worst]:.3g} at {worst}: {x[worst]:.6g}, should be {truth[worst]:.6g}\n"
        f"  the plain {dtype} computation is off by at most {allowed_plain:.3g}; allowed: c = {c:g} times that, plus "
        f"{floor:.3g}\n  {int((error > c * allowed_plain + floor).sum())} of {error.size} numbers are beyond it"
    )


def _error(x: NDArray[np.float64], truth: NDArray[np.float64]) -> NDArray[np.float64]:
    """|x - truth|: 0 where both are the same infinity, infinite where only one is, or where x is not a number."""
    with np.errstate(invalid="ignore"):
        error = np.where(x == truth, 0.0, np.abs(x - truth))
    return np.where(np.isnan(error), np.inf, error)


def _float64(x: Any) -> NDArray[np.float64]:
    """A tensor of torch (bfloat16 included) or anything that numpy reads."""
    return x.detach().cpu().double().numpy() if hasattr(x, "detach") else np.asarray(x, np.float64)


def _dtype(x: Any) -> str:
    return str(x.dtype).removeprefix("torch.")
