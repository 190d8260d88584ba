"""The kernels of a call, found without a card: those that a real call launches, and what each option adds."""

import pytest

pytest.importorskip("triton")

from tests.tiers import every
from tests.triton.specs import BAND, BESIDE, CALLS, SHORT, Call, launched

import weft
from weft.kernels.gpu.programs.kernels import Asked, kernels_of
from weft.planning.attention_plan import plan_attention
from weft.settings import interpreted
from weft.target import GPU, GPUS

pytestmark = pytest.mark.skipif(interpreted(), reason="Triton interprets, and compiles nothing")
OPTIONS = {"softcap": "softcap", "alibi": "alibi", "sinks": "sinks", "lse": "lse_gradient", "tf32": "tf32"}
DENSE = {name: call for name, call in CALLS.items() if call.dense and "scale" not in call.options}


def names(call, card=GPU, **more):
    options = {OPTIONS[name]: True for name in call.options}
    found = kernels_of(plan_attention(call.pattern, call.problem(), card), Asked(**options, **more))
    return [one.name for one in found]


@pytest.mark.parametrize("name", every(3, [*DENSE, "short", "beside"]))
def test_they_are_what_a_call_launches(name):
    """As the tests find them, whose tensors have memory."""
    call = {**DENSE, "short": SHORT, "beside": BESIDE}[name]
    expected = list(dict.fromkeys(one.name for one in launched(call)))
    assert [one for one in names(call, deterministic=True) if one != "sink_gradient"] == expected
    assert ("sink_gradient" in names(call, deterministic=True)) == ("sinks" in call.options)
    assert names(call, deterministic=True) == names(call, deterministic=True)


def test_a_call_without_gradients_has_the_first_of_them():
    every, forward = names(CALLS["window"]), names(CALLS["window"], gradients=False)
    assert forward == every[:1] and forward[0].startswith("forward") and len(every) == 3


def test_few_rows_depend_on_the_card():
    """Which shares its keys among its own processors, not among those of an interpreter."""
    call = Call(weft.causal(align="bottom-right"), 1, 131072, dims=(128, 128), heads=(32, 8), batch=8)
    assert names(call, gradients=False)[0].startswith("split_kv") and names(call, gradients=False)[1].startswith(
        "combine"
    )
    few = Call(weft.causal(align="bottom-right"), 1, 4096, dims=(128, 128), heads=(32, 32), batch=64)
    assert len(names(few, GPUS["a100"], gradients=False)) == 1


def test_long_sequences_take_no_memory():
    assert names(Call(BAND, 1 << 20, 1 << 20, dims=(128, 128), heads=(128, 128), batch=64))
