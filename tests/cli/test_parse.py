"""Patterns as text: what is read, and where what is no pattern is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft
from weft.errors import PatternError
from weft.pattern.parse import LONGEST, parse
from weft.testing.cases import CASES, At

PLACES = [At(64, 64), At(130, 64, "top-left"), At(17, 90, "bottom-right")]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("at", PLACES, ids=str)
def test_a_printed_pattern_is_read_back(name, at):
    if not CASES[name].fits(at.m, at.n):
        pytest.skip("no meaning at this size")
    pattern = CASES[name].make(at)
    assert parse(str(pattern)) == pattern


def test_a_recognised_pattern_is_read_back():
    found = weft.recognize(weft.chunks(10).to_dense(40)).pattern
    assert "sized" in str(found) and parse(str(found)) == found


ATOMS = st.sampled_from([weft.causal(), weft.window(left=3), weft.chunks(4), weft.full(), weft.dilated(1, 2, 3)])
TREES = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.builds(lambda a, b: a & b, inner, inner),
        st.builds(lambda a, b: a | b, inner, inner),
        st.builds(lambda a: ~a, inner),
        st.builds(lambda a, q, k: a.shift(q, k), inner, st.integers(-9, 9), st.integers(-9, 9)),
        st.builds(lambda a, b: weft.per_head([a, b]), ATOMS, ATOMS),
    ),
    max_leaves=8,
)


@given(TREES)
def test_expressions_are_read_back(pattern):
    assert parse(str(pattern)) == pattern


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("weft.causal() & weft.window(1023)", weft.causal() & weft.window(1023)),
        ("neighborhood((64,64),(7,7)) | global_tokens(3)",
         weft.neighborhood((64, 64), (7, 7)) | weft.global_tokens(3)),
        ("~window(left=3).shift(q=2)", ~weft.window(left=3).shift(q=2)),
        ("(causal() | full()).aligned('top-left')", (weft.causal() | weft.full()).aligned("top-left")),
        ("window(4 * 1024 - 1)", weft.window(4095)),
        ("window(2 ** 10 // 3 % 7 + (1 << 4))", weft.window(2**10 // 3 % 7 + (1 << 4))),
        ("causal(-3)", weft.causal(-3)),
        ("documents(range(3, 30, 4))", weft.documents(range(3, 30, 4))),
        ("segments([2, 3], [[causal(), None], [True, full()]])",
         weft.segments([2, 3], [[weft.causal(), None], [True, weft.full()]])),
        ("  causal()\n  & chunks(8)  ", weft.causal() & weft.chunks(8)),
    ],
)  # fmt: skip
def test_what_is_meant(text, meant):
    assert parse(text) == meant


@pytest.mark.parametrize(
    ("text", "column", "wrong", "cure"),
    [
        ("causal() & windw(3)", 12, "no pattern windw", "did you mean window"),
        ("window(lft=3)", 8, "no argument lft", "did you mean left"),
        ("causal().shft(q=1)", 9, "no method shft", "did you mean shift"),
        ("causal().at(0, 0)", 9, "no method at", "aligned"),
        ("window(left=3, left=4)", 16, "given twice", "once"),
        ("causal(1, 2, 3)", 1, "too many positional", "causal(offset=0, align=None)"),
        ("longformer()", 1, "missing a required argument", "longformer(window, global_tokens=0"),
        ("causal", 1, "stands alone", "causal(...)"),
        ("causal() & x", 12, "stands alone", "use one of"),
        ("causal() and full()", 1, "`and`", "write &"),
        ("not causal()", 1, "`not`", "write ~"),
        ("-causal()", 1, "`-` before a pattern", "~"),
        ("causal() & 3", 12, "a pattern and a number", "join patterns by & and |"),
        ("window(3 & 4)", 8, "a number and a number", "+ - *"),
        ("window(1 / 2)", 8, "a number and a number", "//"),
        ("causal() &", 11, "invalid syntax", "write calls"),
        ("", 1, "invalid syntax", "write calls"),
        ("documents([1, 2, 3, ..., 9; 300 in all])", 27, "invalid syntax", "in full"),
        ("3 + 4", 1, "a number, not a pattern", "write calls"),
        ("[causal()]", 1, "a list, not a pattern", "write calls"),
        ("window(2 ** 64)", 13, "between 0 and 63", "smaller"),
        ("window(1 // 0)", 13, "divides by 0", "another"),
        ("window(9223372036854775809)", 8, "64 bits", "smaller"),
        ("window(2 ** 63 * 4)", 8, "64 bits", "smaller"),
        (f"documents(range({LONGEST + 1}))", 11, "longer than", "range(start"),
        ("causal(*[1])", 8, "starred", "write calls"),
        ("causal(**{})", 8, "**", "name every argument"),
        ("window(b'1')", 8, "no literal", "write calls"),
        ("~" * 100 + "causal()", 101, "nested too deeply", "flatter"),
        ("(" * 300 + "causal()" + ")" * 300, 201, "nested", "write calls"),
        ("causal() & 'é' & windw(2)", 12, "a string", "join"),
        ("window('é'[0]) & é()", 8, "subscript", "write calls"),
    ],
)  # fmt: skip
def test_refused_with_its_place(text, column, wrong, cure):
    with pytest.raises(PatternError) as found:
        parse(text)
    error = found.value
    head, shown, caret = error.asked.split("\n")
    assert head.endswith(f"at column {column}:")
    assert wrong in error.wrong and cure in error.cure
    assert caret.endswith("^")
    if shown.strip():
        assert shown[4:] in text.strip()
        at = len(caret) - 5  # the character above the caret, in what is shown
        assert shown[4:][at : at + 1] == text.strip()[column - 1 : column]


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')", "eval('1')", "(lambda: causal())()", "[causal() for _ in range(3)][0]",
        "causal().__class__", "causal().body", "causal().to_dense(4)", "weft.errors.PatternError('a')", "f'{causal()}'",
        "causal() if True else full()", "(x := causal())", "open('file')", "attention(1, 2, 3)", "recognize([[True]])",
        "causal.__globals__", "print(1)", "Pattern()", "range(3).__class__",
    ],
)  # fmt: skip
def test_nothing_else_runs(text):
    with pytest.raises(PatternError):
        parse(text)


@pytest.mark.parametrize(
    "text", ["~" * 5000 + "causal()", "causal()" + " | full()" * 3000, "[" * 5000, "-" * 9999 + "1"]
)
def test_any_depth_is_refused_in_words(text):  # by which of Python's limits depends on its version
    with pytest.raises(PatternError):
        parse(text)


def test_chains_are_not_deep():
    assert parse(" | ".join(["causal()"] * 200)) == parse("causal()" + " | causal()" * 199)
    assert parse("~" * 98 + "causal()").acsr(8).nnz == 36


def test_what_the_library_refuses_keeps_its_own_words():
    with pytest.raises(PatternError, match="left must be at least 0"):
        parse("causal() & window(left=-1)")


@given(st.text(alphabet="causlwindow()&|~[],.=0123456789 'shift*+-<", max_size=40))
def test_no_text_gives_anything_but_a_pattern_or_a_pattern_error(text):
    try:
        found = parse(text)
    except PatternError:
        return
    assert isinstance(found, weft.Pattern)
