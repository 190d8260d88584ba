"""Docstrings and comments of sources: sentences of at most 25 words, as in docs.

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
FOLDERS = ("kernels", "planning", "torch")
# Where the next name with its colon begins.
NAMED = re.compile(r"(?<=[.;])\s+(?=[A-Za-z_][\w`.*]*(?:, [A-Za-z_][\w`.*]*)*(?: \([^)]*\))?(?:, likewise)?:\s)")


def texts(source):
    """Docstrings, and comments; comments on lines of their own that follow each other are one."""
    places = (ast.Module, ast.ClassDef, ast.FunctionDef)
    yield from filter(None, (ast.get_docstring(x) for x in ast.walk(ast.parse(source)) if isinstance(x, places)))
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


@pytest.mark.parametrize("folder", FOLDERS)
def test_sentences_of_sources_are_short(folder):
    found = {str(path): long_ones(path.read_text()) for path in sorted((ROOT / folder).rglob("*.py"))}
    assert {path: long for path, long in found.items() if long} == {}


def test_a_long_sentence_is_found():
    long = " ".join(["word"] * 26)
    assert long_ones(f'"""{long}."""') == long_ones(f"# {long}.") == [f"26 words: {long}."]
    assert long_ones(f"x = 1  # {long}\n") and not long_ones(f'"""{long[:50]}. Then {long[50:]}."""')
    assert not long_ones(f'"""rows: {long[:60]}. cols: {long[60:]}."""')
