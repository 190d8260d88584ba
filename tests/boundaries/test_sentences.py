"""Docstrings, comments and errors of sources: sentences of at most 25 words, as in docs.

A docstring names what it is given: `rows: of a tile. cols: of the side that is walked.` Each of these is a sentence.
"""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest
from tests.docs.test_prose import MOST, sentences, words

import weft

ROOT = Path(weft.__file__).parent
# Where the next name with its colon begins.
NAMED = re.compile(r"(?<=[.;])\s+(?=[A-Za-z_][\w`.*]*(?:, [A-Za-z_][\w`.*]*)*(?: \([^)]*\))?(?:, likewise)?:\s)")


def is_prose(paragraph):
    """Neither a literal block, all of whose lines are indented, nor what click leaves as it is."""
    return not all(line.startswith(" ") for line in paragraph.splitlines()) and not paragraph.startswith("\b")


def literal(node):
    """The text of a string as it is written; what a format string puts in is a word."""
    if isinstance(node, ast.JoinedStr):
        return "".join(x.value if isinstance(x, ast.Constant) else "one" for x in node.values)
    if isinstance(node, ast.BinOp):
        return literal(node.left) + literal(node.right)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def texts(source):
    """Docstrings, errors, and comments; comments on lines of their own that follow each other are one."""
    raised = (x.exc for x in ast.walk(ast.parse(source)) if isinstance(x, ast.Raise) and isinstance(x.exc, ast.Call))
    yield from (literal(argument) for error in raised for argument in error.args)
    places = (ast.Module, ast.ClassDef, ast.FunctionDef)
    said = (ast.get_docstring(x) or "" for x in ast.walk(ast.parse(source)) if isinstance(x, places))
    yield from ("\n\n".join(filter(is_prose, text.split("\n\n"))) for text in said)
    together, last = "", 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        said, (row, column) = token.string.lstrip("# "), token.start
        if token.line[:column].strip():
            yield said
        elif row == last + 1:
            together, last = f"{together} {said}", row
        else:
            yield together
            together, last = said, row
    yield together


def long_ones(source):
    every = (one for text in texts(source) for sentence in sentences(text) for one in NAMED.split(sentence))
    return [f"{words(one)} words: {one}" for one in every if words(one) > MOST]


@pytest.mark.parametrize("place", sorted(x.name for x in ROOT.iterdir() if x.is_dir() or x.suffix == ".py"))
def test_sentences_of_sources_are_short(place):
    paths = sorted((ROOT / place).rglob("*.py")) if (ROOT / place).is_dir() else [ROOT / place]
    found = {str(path): long_ones(path.read_text()) for path in paths}
    assert {path: long for path, long in found.items() if long} == {}


def test_a_long_sentence_is_found():
    long = " ".join(["word"] * 26)
    assert long_ones(f'"""{long}."""') == long_ones(f"# {long}.") == [f"26 words: {long}."]
    assert long_ones(f"x = 1  # {long}\n") and not long_ones(f'"""{long[:50]}. Then {long[50:]}."""')
    assert not long_ones(f'"""rows: {long[:60]}. cols: {long[60:]}."""')
    assert long_ones(f"raise ValueError('asked', f'{{x}} {long}')") and not long_ones(f"print('{long}')")
