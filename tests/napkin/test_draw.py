"""Pictures and loops of diagrams."""

from itertools import pairwise
from xml.etree import ElementTree

import pytest
from tests.napkin.algorithms import axes, flash, tiled_matmul

import weft
from weft.napkin.builders import attention, attention_of_term, matmul, mlp, softmax
from weft.napkin.diagram import Axis
from weft.napkin.draw import COLOURS, svg
from weft.napkin.pseudocode import pseudocode
from weft.napkin.relabel import Derivation, flash_attention

SVG = "{http://www.w3.org/2000/svg}"


def parts(what):
    """(texts, rectangles, paths, width, height) of a picture."""
    root = ElementTree.fromstring(svg(what, "a <title>"))
    found = [root.findall(SVG + tag) for tag in ("text", "rect", "path")]
    return *found, float(root.get("width")), float(root.get("height"))


DIAGRAMS = [
    attention(),
    flash(),
    tiled_matmul(),
    matmul(*axes("abc")) @ softmax(Axis("x"), axes("q")),
    Derivation(mlp(*axes("abhc"))).group("a", "shared").stream("h", "shared").stream("b", "shared"),
    flash_attention(attention_of_term(weft.neighborhood((8, 8), (3, 3)).acsr(64, 64).terms[0], 4, 4)),
]


@pytest.mark.parametrize("what", DIAGRAMS, ids=lambda what: getattr(what, "name", None) or what.diagram.name)
def test_everything_lies_on_the_page(what):
    texts, rectangles, _, width, height = parts(what)
    for text in texts:
        across = 7.3 * len(text.text) * (0.5 if text.get("text-anchor") == "middle" else 1)
        assert 0 <= float(text.get("x")) and float(text.get("x")) + across <= width
        assert 0 < float(text.get("y")) < height
    for rectangle in rectangles[1:]:
        x, y, w, h = (float(rectangle.get(name)) for name in ("x", "y", "width", "height"))
        assert 0 <= x and x + w <= width and 0 <= y and y + h <= height and w > 0 and h > 0
    assert "a <title>" in {text.text for text in texts}


def _colours(what):
    return {path.get("stroke") for path in parts(what)[2]}


@pytest.mark.parametrize("what", DIAGRAMS, ids=lambda what: getattr(what, "name", None) or what.diagram.name)
def test_no_label_lies_on_another(what):
    boxes = []
    for text in parts(what)[0]:
        x, y, across = float(text.get("x")), float(text.get("y")), 0.58 * float(text.get("font-size")) * len(text.text)
        x -= across / 2 if text.get("text-anchor") == "middle" else 0
        boxes.append((x, x + across, y - 9, y, text.text))
    for i, one in enumerate(boxes):
        for other in boxes[:i]:
            apart = one[1] <= other[0] or other[1] <= one[0] or one[3] <= other[2] or other[3] <= one[2]
            assert apart, (one, other)


def test_every_operation_and_array_is_named():
    texts = [text.text for text in parts(flash())[0]]
    assert {"contract", "softmax-contract", "Q", "K", "V", "S", "O", "g_q", "s_x"} <= set(texts)
    assert "group: g_q" in texts and "loop: s_x" in texts and "P" not in texts


def test_levels_have_their_colours():
    assert {COLOURS["global"], COLOURS["shared"], COLOURS["register"]} <= _colours(flash())
    assert COLOURS["register"] not in _colours(attention())


def test_tuples_are_separated_by_dashed_lines():
    paths = parts(matmul(*axes("abc")))[2]
    assert len([path for path in paths if path.get("stroke-dasharray")]) == 1  # A from B


def test_the_same_diagram_gives_the_same_picture():
    assert svg(flash()) == svg(flash()) != svg(attention())


def test_loops_of_flash_attention():
    assert pseudocode(flash()).splitlines() == [
        "in parallel, for each shared group: g_q of q",
        "    read Q[g_q, d]",
        "    for each chunk: s_x of x",
        "        read K[s_x, d]",
        "        read V[s_x, d]",
        "        S = contract[d](Q, K)  # S[g_q, s_x]",
        "        O takes in S, V by online softmax with rescaling",
        "    write O[g_q, d]",
    ]


def test_nested_loops_read_inputs_where_they_are_cut():
    lines = pseudocode(DIAGRAMS[4]).splitlines()
    depth = {line.split()[1][0]: (len(line) - len(line.lstrip())) // 4 for line in lines if "read" in line}
    assert depth == {"W": 2, "X": 3, "U": 3}


def test_spans_and_levels_are_told():
    assert "only the keys x1 that q1 can see: span(x1)" in pseudocode(DIAGRAMS[5])
    text = pseudocode(flash().group("q", "register", 2).stream("x", "register", 3))
    assert "in steps of 3 of x" in text and "for each register group: 2 of q" in text
    first, second = (line for line in text.splitlines() if "in parallel" in line)
    assert not first.startswith(" ") and second.startswith("    in")


def test_an_unpartitioned_diagram_is_its_boxes():
    lines = pseudocode(Derivation(attention())).splitlines()
    assert [line.split()[0] for line in lines] == ["read"] * 3 + ["S", "P", "O", "write"]
    assert all(not line.startswith(" ") for line in lines)
    assert all(a != b for a, b in pairwise(lines))
