"""The paper's worked example on a Hopper GPU, and what its figures rest on."""

import pytest

from weft.errors import RelabelError
from weft.napkin.machine import machine, rate
from weft.napkin.sketch import Balance, Pieces, hopper_attention, mixed_rate
from weft.target import GPUS

H100 = machine("h100")
KIB = 1024


def test_memory_of_the_worked_example():
    sketch = hopper_attention(H100)
    assert sketch.held("shared", "block") == 48 * KIB
    assert sketch.held("shared", "warpgroup") == 48 * KIB
    assert sketch.held("register", "warpgroup") == 74.75 * KIB


def test_three_warpgroups_and_384_rows():
    sketch = hopper_attention(H100)
    fitting = sketch.fitting(H100)
    assert round(fitting["shared"], 1) == 3.7 and round(fitting["register"], 1) == 3.4
    assert sketch.warpgroups(H100) == 3 and sketch.warpgroups(H100) * sketch.rows == 384


def test_clocks_of_a_chunk():
    sketch = hopper_attention(H100)
    expected = {"QK": 2, "exp": 4.0625, "PV": 4, "accumulate": 0.5}
    assert sketch.clocks == pytest.approx(expected, rel=2e-3)  # the vendor's rates are rounded
    assert sketch.tensor_clocks == pytest.approx(6, rel=2e-3)


def test_the_ideal_rate_and_its_balance():
    """1.32 PFLOP/s of half FP8 and half FP16 work; from 295 rows on it is not bound by transfers."""
    mixed = mixed_rate((rate(H100, "fp8"), rate(H100, "fp16")))
    assert round(mixed / 1e15, 2) == 1.32
    balance = Balance(H100, mixed, key_bytes=1 + 2)
    assert round(balance.least_rows) == 295
    assert round(balance.compute_seconds(384, 64, 128) * 1e6, 2) == 1.26
    assert round(balance.transfer_seconds(64, 128) * 1e6, 2) == 0.97
    even = balance.compute_seconds(1, 64, 128) * balance.least_rows
    assert even == pytest.approx(balance.transfer_seconds(64, 128))


def test_clocks_follow_from_rates():
    assert H100.clock == pytest.approx(1.83e9, rel=1e-2)
    assert GPUS["a100"].clock == pytest.approx(1.41e9, rel=1e-2)


@pytest.mark.parametrize(
    "make, word",
    [
        (lambda: hopper_attention(H100, Pieces(w_q=1024)).warpgroups(H100), "warpgroup"),
        (lambda: machine("abacus"), "abacus"),
        (lambda: rate(GPUS["a100"], "fp8"), "fp8"),
    ],
)
def test_what_no_machine_has_is_refused(make, word):
    with pytest.raises(RelabelError, match=word):
        make()
