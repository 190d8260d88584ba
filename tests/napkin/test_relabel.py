"""Relabelled diagrams compute the same; illegal relabellings are refused by operation, axis and level."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.napkin.algorithms import axes, flash, inputs, tiled_matmul
from tests.tiers import examples

import weft
from weft.errors import RelabelError
from weft.napkin.builders import AttentionAxes, attention, attention_of_term, matmul, mlp, normalisation, softmax
from weft.napkin.diagram import Array, Axis, Box, Diagram
from weft.napkin.execute import run
from weft.napkin.operations import CONTRACT, LEMMAS, MAX, SOFTMAX_CONTRACT, SUM, UNIT_CONTRACT, Operation
from weft.napkin.relabel import Derivation, flash_attention


def agree(derivation, diagram, given, sizes):
    """The relabelled run gives what the diagram gives."""
    expected, found = diagram.run(given), run(derivation, given, sizes)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-11, atol=1e-13)


def test_flash_attention_by_named_steps():
    diagram = attention(AttentionAxes(heads=(Axis("h"),), group=(Axis("r"),)), scaled=0.5)
    done = flash_attention(diagram)
    assert [step.rule for step in done.steps] == [
        "lemma", "recolour", "recolour", "group partition", "group partition", "group partition",
        "accumulator", "fusion theorem", "weaving theorem", "stream partition",
    ]  # fmt: skip
    assert "online softmax with rescaling" in str(done.steps[6])
    assert "scale 0.5" in str(done.steps[7]) and "contract" in str(done.steps[7])
    given = inputs(diagram, {"h": 2, "r": 3, "q": 8, "x": 10, "d": 4, "v": 5}, seed=1)
    agree(done, diagram, given, {"g_r": 3, "g_q": 4, "s_x": 5})


@pytest.mark.parametrize("operation", [SUM, MAX, CONTRACT, SOFTMAX_CONTRACT, UNIT_CONTRACT], ids=lambda o: o.name)
@given(cuts=st.lists(st.integers(0, 12), max_size=4), seed=st.integers(0, 99))
@settings(max_examples=examples(25), deadline=None)
def test_accumulators_take_any_chunks(operation, cuts, seed):
    rng = np.random.default_rng(seed)
    whole = [rng.standard_normal((3, 12)) for _ in range(operation.arity)]
    edges = [0, *sorted(cuts), 12]
    state = None
    for lo, hi in pairwise(edges):
        state = operation.accumulator.step(state, *(x[:, lo:hi] for x in whole))
    np.testing.assert_allclose(operation.accumulator.finish(state), operation.meaning(*whole), rtol=1e-11)


@pytest.mark.parametrize("pair", LEMMAS, ids=lambda pair: pair[0].name)
def test_lemmas(pair):
    first, second = pair
    x, w = np.random.default_rng(0).standard_normal((2, 5, 9))
    np.testing.assert_allclose(LEMMAS[pair].meaning(x, w), second.meaning(first.meaning(x), w), rtol=1e-12)


def test_a_large_score_does_not_overflow():
    x = np.array([[0.0, 1e4, -1e4, 1e4]])
    out = SOFTMAX_CONTRACT.accumulator.finish(
        SOFTMAX_CONTRACT.accumulator.step(
            SOFTMAX_CONTRACT.accumulator.step(None, x[:, :2], x[:, :2]), x[:, 2:], x[:, 2:]
        )
    )
    np.testing.assert_allclose(out, 1e4)


@given(st.sampled_from([1, 2, 3, 6]), st.sampled_from([1, 2, 4]), st.sampled_from([1, 5]))
@settings(deadline=None)
def test_matmul_in_any_tiles(g_a, g_c, s_b):
    done = tiled_matmul()
    agree(done, done.diagram, inputs(done.diagram, {"a": 6, "b": 5, "c": 4}), {"g_a": g_a, "g_c": g_c, "s_b": s_b})


def test_nested_streams_of_an_mlp():
    diagram = mlp(*axes("abhc"))
    done = Derivation(diagram).group("a", "shared").stream("h", "shared").stream("b", "shared")
    given = inputs(diagram, {"a": 6, "b": 8, "h": 10, "c": 3})
    agree(done, diagram, given, {"g_a": 3, "s_h": 5, "s_b": 2})


def test_two_levels():
    done = flash().group("q", "register", 2).stream("x", "register", 3)
    given = inputs(done.diagram, {"q": 8, "x": 12, "d": 4})
    agree(done, done.diagram, given, {"g_q": 4, "s_x": 6})
    assert done.partition_of("q", "tensor").size == 2 and done.partition_of("q", "shared").symbol == "g_q"


def test_two_levels_over_a_dilated_window():
    (term,) = weft.dilated(3, 2, 3).acsr(36, 36).terms
    done = flash_attention(attention_of_term(term, 3, 2)).group("q", "register", 2).stream("x", "register", 1)
    agree(done, done.diagram, inputs(done.diagram, {"q": 36, "x": 36, "d": 3, "v": 2}), {"g_q": 4, "s_x": 2})


def test_normalisation_streams_once_it_is_fused():
    diagram = normalisation(Axis("b"), axes("a")) >> matmul(*axes("abc"))
    done = Derivation(diagram).fuse("rms-norm").group("a", "shared").stream("b", "shared")
    agree(done, diagram, inputs(diagram, {"a": 4, "b": 9, "c": 3}), {"g_a": 2, "s_b": 3})


PATTERNS = [
    (weft.causal() & weft.window(left=5), 24),
    (weft.dilated(3, 2, 3), 25),
    (weft.neighborhood(40, 5, stride=2, dilation=3), 40),
    (weft.neighborhood((8, 9), (3, 5), stride=(2, 1), dilation=(2, 1)), 72),
    (weft.neighborhood((4, 5, 6), (3, 3, 3), causal=(True, False, False)), 120),
    (weft.periodic_keys(3), 24),
    (weft.causal(offset=-2), 12),
]


@pytest.mark.parametrize("pattern, tokens", PATTERNS, ids=str)
@pytest.mark.parametrize("rows, keys", [(1, 1), (2, 3), (4, 2)])
def test_sparse_axes_need_no_key_outside_their_span(pattern, tokens, rows, keys):
    (term,) = pattern.acsr(tokens, tokens).terms
    diagram = attention_of_term(term, 3, 2)
    done = flash_attention(diagram)
    lengths = {axis.name: axis.size for axis in diagram.axes.values()}
    stepped = {r.rows for r in diagram.readings if r.relation.diagonal.step > 1}  # lanes may have a rest
    fits = {axis for axis, length in lengths.items() if axis in stepped or length % rows == 0}
    sizes = {p.symbol: keys if p.kind == "stream" else rows if p.axis in fits else 1 for p in done.partitions}
    agree(done, diagram, inputs(diagram, lengths), sizes)


def _two_passes():
    """Scores less their maximum: the second box needs what the first makes of all of x, and x again."""
    q, x = axes("qx")
    arrays = (Array("S", (q, x)), Array("M", (q,)), Array("D", (q, x)), Array("Y", (q,)))
    less = Operation("less", np.subtract, 2)
    boxes = (Box(MAX, ("S",), "M", ("x",)), Box(less, ("S", "M"), "D"), Box(SUM, ("D",), "Y", ("x",)))
    return Derivation(Diagram("two passes", arrays, boxes, ("S",), ("Y",)))


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: Derivation(softmax(Axis("x"), axes("q"))).stream("x", "shared"), ("softmax", "x", "shared")),
        (lambda: Derivation(attention()).stream("x", "shared"), ("softmax", "x", "shared", "fuse")),
        (lambda: Derivation(attention()).group("x", "register"), ("softmax", "x", "register")),
        (lambda: Derivation(matmul(*axes("abc"))).group("b", "shared"), ("contract", "b", "shared", "stream")),
        (lambda: Derivation(matmul(*axes("abc"))).stream("a", "shared"), ("Y keeps a", "group a")),
        (lambda: _two_passes().stream("x", "shared"), ("less", "x", "shared")),
        (lambda: Derivation(matmul(Axis("a", 24), *axes("bc"))).group("a", "shared", 7), ("7", "24", "axis a")),
        (lambda: Derivation(matmul(Axis("a", 24, 8), *axes("bc"))).group("a", "shared", 12), ("multiples of 8", "a")),
        (lambda: Derivation(matmul(*axes("abc"))).group("z", "shared"), ("no axis z",)),
        (lambda: Derivation(matmul(*axes("abc"))).group("a", "attic"), ("attic",)),
        (lambda: Derivation(matmul(*axes("abc"))).group("a", "shared").group("a", "shared"), ("already",)),
        (lambda: flash().group("q", "register", 4).group("q", "tensor", 3), ("3", "4", "axis q")),
        (lambda: Derivation(mlp(*axes("abhc"))).stream("b", "shared").stream("h", "shared"), ("stream h before b",)),
        (lambda: Derivation(attention()).fuse("contract"), ("fuse S = contract[d](Q, K)", "softmax then contract")),
        (lambda: Derivation(attention()).fuse("convolution"), ("convolution", "softmax")),
        (lambda: run(flash(), inputs(flash().diagram, {"q": 4, "x": 4, "d": 2}), {"g_q": 2}), ("s_x", "open")),
        (lambda: run(flash(), inputs(flash().diagram, {"q": 4, "x": 4, "d": 2}), {"g_q": 3}), ("3", "axis q")),
    ],
)
def test_illegal_relabellings_are_refused(make, words):
    with pytest.raises(RelabelError) as caught:
        make()
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert caught.value.wrong and caught.value.cure


def test_a_result_read_twice_is_not_fused_away():
    diagram = attention()
    arrays = (*diagram.arrays, Array("R", axes("q")))
    read_again = Diagram("a", arrays, (*diagram.boxes, Box(SUM, ("P",), "R", ("x",))), diagram.inputs, ("O", "R"))
    with pytest.raises(RelabelError, match="only reader"):
        Derivation(read_again).fuse("softmax")
