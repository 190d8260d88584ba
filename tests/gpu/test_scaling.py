"""The step that scales and rounds sums of dQ: a kernel where memory is in units without gaps, else a conversion."""

from dataclasses import replace
from functools import partial

from tests.triton.specs import card

from weft.kernels.gpu.program import Convert, Known, Slot
from weft.kernels.gpu.scaling import scaled


def test_sums_that_lie_otherwise_are_converted():
    """The kernel that scales sums of dQ takes them as they lie, in units without gaps."""
    sums = Slot.dense("sums", "workspace", "float32", (2, 3, 5, 8))
    result = replace(sums, name="dq", dtype="bfloat16")
    turned = replace(result, strides=(120, 8, 24, 1))
    scaled_by = partial(scaled, scale=0.5, target=card("sm_90"))
    assert scaled_by(sums, result).named["units"] == Known(30)
    assert scaled_by(replace(sums, strides=turned.strides), turned).written == ("dq",)
    for other in (
        turned,
        replace(result, dtype="float32"),
        replace(result, strides=(240, 80, 16, 1)),
        replace(result, shape=(2, 3, 5, 1), strides=(15, 5, 1, 1)),
    ):
        same = replace(sums, shape=other.shape, strides=sums.strides if other is turned else other.strides)
        assert scaled_by(same, other) == Convert("sums", "dq", 0.5)
