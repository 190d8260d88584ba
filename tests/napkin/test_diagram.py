"""What diagrams mean, and how they are put together."""

import numpy as np
import pytest
from tests.napkin.algorithms import axes, dense_attention, inputs

import weft
from weft.errors import RelabelError
from weft.napkin.builders import (
    AttentionAxes,
    attention,
    attention_of_term,
    matmul,
    mlp,
    normalisation,
    softmax,
)
from weft.napkin.diagram import Array, Axis, Box, Diagram
from weft.napkin.operations import CONTRACT, MAX, SUM


def test_matmul_and_its_weave():
    diagram = matmul(*axes("abc"))
    given = inputs(diagram, {"a": 3, "b": 4, "c": 5})
    np.testing.assert_allclose(diagram.run(given)["Y"], given["A"] @ given["B"])
    woven = diagram.weave(Axis("n"), ["A"])
    assert woven.array("B").names == ("b", "c") and woven.array("Y").names == ("n", "a", "c")
    given = inputs(woven, {"n": 2, "a": 3, "b": 4, "c": 5})
    np.testing.assert_allclose(woven.run(given)["Y"], given["A"] @ given["B"])


@pytest.mark.parametrize("operation, expected", [(SUM, np.sum), (MAX, np.max)])
def test_reductions(operation, expected):
    q, x = axes("qx")
    arrays = (Array("X", (q, x)), Array("Y", (q,)))
    diagram = Diagram("reduce", arrays, (Box(operation, ("X",), "Y", ("x",)),), ("X",), ("Y",))
    given = inputs(diagram, {"q": 3, "x": 7})
    np.testing.assert_allclose(diagram.run(given)["Y"], expected(given["X"], axis=1))


def test_axes_may_come_in_any_order():
    q, x = axes("qx")
    given = {"S": np.random.default_rng(0).standard_normal((4, 3))}
    turned = Diagram(
        "softmax", (Array("S", (x, q)), Array("P", (q, x))),
        (Box(softmax(x).boxes[0].operation, ("S",), "P", ("x",)),), ("S",), ("P",),
    )  # fmt: skip
    straight = softmax(x, (q,)).run({"S": given["S"].T})["P"]
    np.testing.assert_allclose(turned.run(given)["P"], straight)
    np.testing.assert_allclose(straight.sum(1), 1)


def test_grouped_attention_in_float64():
    diagram = attention(AttentionAxes(heads=(Axis("h"),), group=(Axis("r"),)), scaled=0.5)
    given = inputs(diagram, {"h": 2, "r": 3, "q": 5, "x": 6, "d": 4, "v": 7})
    out = diagram.run(given)["O"]
    for h, r in np.ndindex(2, 3):
        expected = dense_attention(0.5 * given["Q"][h, r], given["K"][h], given["V"][h])
        np.testing.assert_allclose(out[h, r], expected, rtol=1e-12)


@pytest.mark.parametrize(
    "pattern, tokens",
    [
        (weft.causal() & weft.window(left=5), 20),
        (weft.dilated(2, 1, 3), 20),
        (weft.neighborhood((5, 6), (3, 3), dilation=(1, 2)), 30),
        (weft.causal(offset=-1), 9),  # the first row sees nothing
    ],
    ids=str,
)
def test_attention_over_a_term_is_attention_under_its_mask(pattern, tokens):
    (term,) = pattern.acsr(tokens, tokens).terms
    diagram = attention_of_term(term, 4, 3)
    given = inputs(diagram, {axis.name: axis.size for axis in diagram.axes.values()})
    flat = [given[name].reshape(tokens, -1) for name in "QKV"]
    expected = dense_attention(*flat, pattern.to_dense(tokens))
    np.testing.assert_allclose(diagram.run(given)["O"].reshape(tokens, -1), expected, rtol=1e-12, atol=1e-14)


def test_composition_and_parallel_product():
    chain = normalisation(Axis("b"), axes("a"), "layer") >> matmul(*axes("abc"))
    assert chain.inputs == ("X", "B") and [box.operation.name for box in chain.boxes] == [
        "centre", "rms-norm", "contract",
    ]  # fmt: skip
    given = inputs(chain, {"a": 3, "b": 8, "c": 2})
    x = given["X"] - given["X"].mean(1, keepdims=True)
    np.testing.assert_allclose(chain.run(given)["Y"], x / x.std(1, keepdims=True) @ given["B"])
    both = matmul(*axes("abc")) @ matmul(*axes("abc"))
    assert both.inputs == ("A", "B", "A2", "B2") and both.outputs == ("Y", "Y2")
    given = inputs(both, {"a": 2, "b": 3, "c": 4})
    np.testing.assert_allclose(both.run(given)["Y2"], given["A2"] @ given["B2"])


def test_mlp():
    diagram = mlp(*axes("abhc"))
    given = inputs(diagram, {"a": 3, "b": 4, "h": 6, "c": 2})
    hidden = given["X"] @ given["U"]
    gelu = 0.5 * hidden * (1 + np.tanh(np.sqrt(2 / np.pi) * (hidden + 0.044715 * hidden**3)))
    np.testing.assert_allclose(diagram.run(given)["Y"], gelu @ given["W"])


def test_text_names_boxes_axes_and_levels():
    text = str(attention())
    assert "S = contract[d](Q, K)" in text and "P = softmax[x](S)" in text
    assert "S[q, x] element in global, woven over q, x" in text


def _broken(boxes, outputs=("Y",)):
    a, b, c = axes("abc")
    return Diagram("d", (Array("A", (a, b)), Array("B", (b, c)), Array("Y", (a, c))), boxes, ("A", "B"), outputs)


@pytest.mark.parametrize(
    "make, word",
    [
        (lambda: _broken((Box(CONTRACT, ("A", "Z"), "Y", ("b",)),)), "Z"),
        (lambda: _broken((Box(CONTRACT, ("A", "B"), "Y", ("a",)),)), "B lacks"),
        (lambda: _broken((Box(CONTRACT, ("A", "B"), "Y"),)), "must have the axes"),
        (lambda: _broken((Box(CONTRACT, ("A",), "Y", ("b",)),)), "takes 2"),
        (lambda: _broken(()), "output Y"),
        (lambda: matmul(*axes("ab"), Axis("a", 3)), "axis a"),
        (lambda: matmul(*axes("abc")) >> matmul(*axes("bca")), "does not fit"),
        (lambda: (matmul(*axes("abc")) @ matmul(*axes("abc"))) >> softmax(Axis("c"), axes("a")), "2 outputs"),
        (lambda: Array("A", (), level="attic"), "attic"),
        (lambda: matmul(*axes("abc")).run({"A": np.ones((2, 3))}), "input B is missing"),
        (lambda: matmul(*axes("abc")).run({"A": np.ones((2, 3)), "B": np.ones((4, 5))}), "axis b"),
        (lambda: matmul(*axes("abc")).run({"A": np.ones(2), "B": np.ones((4, 5))}), "A has 1 axes"),
        (lambda: normalisation(Axis("b"), kind="batch"), "batch"),
        (lambda: attention(relations=(weft.causal().acsr(4, 4).terms[0].axes[0],) * 2), "2 relations"),
        (lambda: attention_of_term(weft.global_tokens([3, 5, 11]).acsr(40, 40).terms[0], 4, 4), "lists"),
    ],
)
def test_what_does_not_fit_is_refused(make, word):
    with pytest.raises(RelabelError) as caught:
        make()
    assert word in str(caught.value) and caught.value.wrong and caught.value.cure
