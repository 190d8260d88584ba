"""Programs of the library's patterns and of drawn ones on the oracle: what dense attention computes, to 1e-10."""

import os
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.tiers import every, examples

import weft
from weft.acsr import interpret
from weft.errors import UnsupportedKernel
from weft.planning.families.hopper import CONFIGS
from weft.target import GPUS
from weft.testing.cases import CASES, HEADS, At
from weft.testing.strategies import per_row_patterns, problems

from .checked import EXACT, Call, check, expected

CARDS = ("h200", "b200", "a100", "mi300x")
PLACES = (At(130, 130), At(70, 130, "bottom-right"), At(130, 63, "top-left"), At(1, 90, "bottom-right"))
OPTIONS = (
    {}, {"lse": True, "with_delta": True}, {"softcap": 2.0, "sinks": True}, {"free": True},
    {"alibi": True, "shift": 3, "sinks": True, "lse": True}, {"scale": -0.2},
)  # fmt: skip
FORMS = (((64, 64), "bfloat16"), ((16, 16), "float32"), ((33, 17), "float16"), ((96, 128), "bfloat16"))
laws = settings(
    max_examples=examples(60),
    deadline=None,
    derandomize=bool(os.environ.get("CI")),  # under CI the examples are always the same
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # a failure says its call; shrinking takes minutes
)


@pytest.mark.parametrize("number,name", every(8, enumerate(CASES)))
def test_cases(number, name):
    """Every pattern of the library at lengths it fits, each with other options on another card."""
    case = CASES[name]
    for place, at in enumerate(PLACES):
        if case.fits(at.m, at.n):
            options = OPTIONS[(number + place) % len(OPTIONS)]
            dims, dtype = FORMS[(number // 2 + place) % len(FORMS)]
            kept = {x: y for x, y in options.items() if not (case.grid and x == "alibi")}
            card = CARDS[(number + 2 * place) % len(CARDS)]
            check(Call(case.make(at), at.m, at.n, (HEADS, 2), dims=dims, dtype=dtype, card=card, options=kept))


@pytest.mark.parametrize("m,n", [(0, 5), (5, 0), (0, 0), (1, 1)])
def test_nothing_to_compute(m, n):
    """Lengths of 0 and 1, and no head."""
    check(Call(weft.full(), m, n, options={"sinks": True, "lse": True}))
    check(Call(weft.full(), m, n, heads=(0, 0)))


@st.composite
def calls(draw):
    """A drawn pattern on a drawn card."""
    pattern, m, n = draw(problems(3, 200))
    dims, dtype = draw(st.sampled_from((*FORMS, ((128, 128), "bfloat16"), ((192, 192), "float16"))))
    options = dict(draw(st.sampled_from(OPTIONS)))
    if any(term.rank > 1 for term in pattern.acsr(m, n).terms):
        options.pop("alibi", None)
    order = draw(st.sampled_from(((0, 1, 2, 3), (0, 2, 1, 3), (2, 0, 1, 3))))
    heads, card = draw(st.sampled_from(((1, 1), (2, 1), (2, 2)))), draw(st.sampled_from(sorted(GPUS)))
    return Call(pattern, m, n, heads, 1, dims, dtype, card, options, order, one_kernel=draw(st.booleans()))


@laws
@given(calls())
def test_drawn_calls(call):
    with suppress(UnsupportedKernel):  # the card has no room for blocks of single pairs so wide
        check(call)


@laws
@given(per_row_patterns(), st.integers(1, 90), st.sampled_from(CARDS), st.booleans())
def test_drawn_heads_and_rows(pattern, length, card, one_kernel):
    """Two heads and three batch rows, of which some share plans."""
    check(Call(pattern, length, length, (2, 1), 3, card=card, one_kernel=one_kernel))


WINDOWS = st.builds(weft.window, st.integers(0, 200), st.integers(0, 200))
LEFT = st.sampled_from((63, 64, 100, 127, 128, 191)).map(lambda left: weft.causal() & weft.window(left=left))
BESIDE = st.integers(2, 200).map(weft.periodic_keys) | st.integers(1, 200).map(weft.prefix)
DILATED = st.builds(weft.dilated, st.integers(0, 150), st.integers(0, 150), st.integers(1, 5))
SHORT = st.one_of(WINDOWS, LEFT, DILATED, st.builds(lambda a, b: a | (weft.causal() & b), LEFT, BESIDE))


@laws
@given(SHORT, st.integers(1, 600), st.sampled_from(((1, 1), (2, 1))), st.booleans(), st.sampled_from(OPTIONS[:3]))
def test_drawn_windows_by_warp_groups(pattern, length, heads, grouped, options):
    """What kernels of warp groups have, in their tiles at any length or as planned."""
    options = {name: x for name, x in options.items() if name != "softcap"}
    fixed = tuple(CONFIGS.items()) if grouped else ()
    check(Call(pattern, length, length, heads, 1, (64, 64), options=options, fixed=fixed))


@pytest.mark.parametrize("options", every(4, OPTIONS))
@pytest.mark.parametrize("name", ["longformer_global", "padded_causal", "strided", "per_head"])
def test_the_dense_form_is_the_definition(name, options):
    """What programs are held to is what `weft.acsr.interpret` says."""
    call = Call(CASES[name].make(At(70, 70)), 70, heads=(HEADS, 2), options=options)
    arrays = call.arrays()
    found = expected(call, arrays)
    dlse = arrays.get("dlse", np.zeros(found["lse"].shape))
    dk, dv = np.zeros_like(found["dk"]), np.zeros_like(found["dv"])
    for b, h in np.ndindex(call.batch, HEADS):
        slope, sink = (float(arrays[x][h]) if x in arrays else none for x, none in (("slopes", 0.0), ("sinks", None)))
        scoring = interpret.Scoring(call.how.scale, call.how.softcap, slope, call.how.shift, sink)
        acsr, qkv = call.pattern.acsr(70, 70, b, h), (arrays["q"][b, h], arrays["k"][b, h // 2], arrays["v"][b, h // 2])
        out, lse = interpret.forward(acsr, *qkv, scoring)
        made = interpret.backward(acsr, qkv, arrays["dout"][b, h], dlse[b, h], scoring)
        for x, y in ((out, "out"), (lse, "lse"), (made.dq, "dq")):
            np.testing.assert_allclose(found[y][b, h], x, **EXACT, err_msg=y)
        dk[b, h // 2] += made.dk
        dv[b, h // 2] += made.dv
    np.testing.assert_allclose(found["dk"], dk, **EXACT)
    np.testing.assert_allclose(found["dv"], dv, **EXACT)
