"""Patterns within patterns: a thousand deep they are walked, and beyond that refused by name."""

import subprocess
import sys

import numpy as np
import pytest

import weft
from weft.errors import InputError, PatternError
from weft.pattern import crossing
from weft.pattern.depth import DEEPEST

CODE = """
import threading, torch, weft
from weft.pattern.depth import DEEPEST
pattern = weft.window(3, 0)
while pattern.depth < DEEPEST:
    pattern = ~pattern
other = weft.window(3, 0)
while other.depth < DEEPEST:
    other = ~other
same = weft.window(3, 0) if DEEPEST % 2 else ~weft.window(3, 0)
found = []
def walk():
    q = torch.ones(1, 1, 40, 8, requires_grad=True)
    weft.attention(q, q, q, pattern).sum().backward()
    found.extend([
        hash(pattern) == hash(other), pattern == other, str(pattern).count("~") > 900,
        (pattern.to_dense(40) == same.to_dense(40)).all(), pattern.acsr(40).nnz == same.acsr(40).nnz,
        len(list(pattern.filled("top-left").alignments())) == 1,
    ])
threading.stack_size(2 << 20)  # less than most systems give a thread
thread = threading.Thread(target=walk)
thread.start()
thread.join()
assert len(found) == 6 and all(found), found
"""


@pytest.mark.more
def test_a_thousand_operators_within_each_other():
    subprocess.run([sys.executable, "-c", CODE], check=True, timeout=300)


def test_deeper_ones_are_refused_by_name():
    # in a process of its own: Python's limit stays raised
    code = "import weft\np = weft.causal()\nfor i in range(10_000): p = p.shift(q=1)\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"PatternError: shift of patterns within patterns\n  wrong: it is nested {DEEPEST + 1} deep" in done.stderr


def test_depth_counts_patterns_in_lists_and_chains_as_one_level():
    one = weft.causal()
    joined = one
    for i in range(100):
        joined = joined | weft.window(i, 0)
    assert joined.depth == one.depth + 1
    assert weft.per_head([one, ~one]).depth == (~one).depth + 1 == one.depth + 2


def test_what_crosses_no_graph_says_so():
    deep = "invert(" * 250 + "causal()" + ")" * 250
    with pytest.raises(InputError, match="nested too deep to cross"):
        crossing.decode(deep, np.array([1]).tobytes())


def test_complements_within_each_other_keep_their_meaning():
    pattern = weft.causal()
    for i in range(12):
        pattern = ~(pattern.shift(q=1) & weft.window(i, 0))
    assert (pattern.acsr(30, 30).to_dense() == pattern.to_dense(30, 30)).all()
    with pytest.raises(PatternError):
        pattern.shift(q=2**40)
