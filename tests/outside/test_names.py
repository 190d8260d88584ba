"""Names that become code are checked where they are made."""

import keyword

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import RelabelError
from weft.kernels.gpu.compile.source import Source
from weft.napkin.diagram import Array, Axis, Dtype
from weft.napkin.emit import source
from weft.outside import is_name

EVIL = (
    "", "a b", "a-b", "1a", "a\nimport os", "a=__import__('os')", "x: int = print(1)", "*", "lambda", "None", "a;b",
    "é", "max", "sqrt", "__import__", "a" * 65, "ａ", "\ud800", "a)", "#",
)  # fmt: skip
GOOD = ("a", "x0", "g_q", "nbytes", "K_2", "_t")


@given(st.text(max_size=8) | st.sampled_from(EVIL + GOOD))
def test_the_law(text):
    if is_name(text):
        scope = {}
        exec(f"def {text}(*, other): return other", scope)
        assert scope[text](other=1) == 1 and not keyword.iskeyword(text)


@pytest.mark.parametrize("name", EVIL)
def test_names_of_diagrams(name):
    for made in (Axis, lambda x: Array(x, (Axis("a"),)), lambda x: Dtype("open", x)):
        with pytest.raises(RelabelError, match="no name"):
            made(name)
    with pytest.raises(ValueError, match="no name"):
        Source(name, "", (), (), 4, 1) if len(name) < 65 else Source(name * 10, "", (), (), 4, 1)
    with pytest.raises(ValueError, match="no name"):
        Source("kernel", "", ((name * 10 if len(name) > 64 else name, "i32"),), (), 4, 1)


def test_names_of_formulas():
    sympy = pytest.importorskip("sympy")
    x = sympy.Symbol("x", positive=True)
    assert "def f(*, x)" in source("f", x + 1, ["x"])
    for name in EVIL:
        for given_, formula in ((("f", [name])), x), (((name), ["x"]), x), ((("f", ["x"])), sympy.Symbol(name or " ")):
            with pytest.raises(RelabelError, match="cannot stand in it"):
                source(given_[0], formula, given_[1])
    with pytest.raises(RelabelError):
        source("f", x, ["x"], '""" + evil')


@pytest.mark.parametrize("name", GOOD)
def test_good_names(name):
    assert Axis(name).name == Source(name, "", ((name, "i32"),), (), 4, 1).name == name
