"""Texts of functions without the branches that constants rule out."""

from types import SimpleNamespace

import pytest

from weft.kernels.gpu.compile.folding import folded

C = SimpleNamespace(rank=2, more=True, whole=False, kind="dq", precision=None)
CASES = {
    "a branch that is taken": (
        """
        if C.rank > 1:  # on grids
            x = 1
        y = 2
        """,
        """
        # on grids
        x = 1
        y = 2
        """,
    ),
    "a branch that is not, and the comments of another": (
        """
        # before
        if C.whole:
            x = 1
        else:
            # why
            x = 2
        # after
        """,
        """
        # before
        # why
        x = 2
        # after
        """,
    ),
    "a chain": (
        """
        if C.whole:
            x = 1
        elif KIND == "full" and C.more:
            x = 2
        elif C.kind == "dq":
            x = 3
        elif KIND == "edge":
            x = 4
        """,
        """
        if KIND == 'full':
            x = 2
        else:
            x = 3
        """,
    ),
    "nothing is left of a branch": (
        """
        if KIND == "full":
            if C.whole:
                x = 1
        else:
            x = 2
        """,
        """
        if KIND == 'full':
            pass
        else:
            x = 2
        """,
    ),
    "loops and branches inside": (
        """
        for n in range(3):
            if C.more:
                for m in range(2):
                    x = (
                        n
                        + m
                    )
            else:
                x = 0
        """,
        """
        for n in range(3):
            for m in range(2):
                x = (
                    n
                    + m
                )
        """,
    ),
    "choices in an expression": (
        "x = f(1 if C.more else 2, [a if b else c], (3 if C.whole else (4 if C.rank == 2 else 5)))",
        "x = f(1, [a if b else c], (4))",
    ),
    "several on a line": ("x = (a if C.whole else bbb) + (c if C.more else d)", "x = (bbb) + (c)"),
    "what is known of None, not and or": (
        """
        if C.precision is None or x:
            y = 1
        if not C.more and x:
            y = 2
        if not (C.whole or x):
            y = 3
        """,
        """
        y = 1
        if not (C.whole or x):
            y = 3
        """,
    ),
    "nothing is known": (
        """
        if C.unknown > 1:
            x = 1
        """,
        """
        if C.unknown > 1:
            x = 1
        """,
    ),
}


def function(text):
    lines = text.strip("\n").splitlines()
    indent = len(lines[0]) - len(lines[0].lstrip())
    lines = [line[indent:] for line in lines if line.strip()]
    return "\n".join(["@triton.jit", "def f(C):", '    """What it does."""', *(f"    {x}" for x in lines)]) + "\n"


@pytest.mark.parametrize("name", CASES)
def test_what_is_left(name):
    before, after = CASES[name]
    assert folded(function(before), {"C": C}) == function(after)


@pytest.mark.parametrize("name", CASES)
def test_without_constants_a_text_means_the_same(name):
    text = function(CASES[name][0])
    left = folded(text, {})
    assert folded(left, {"C": C}) == folded(text, {"C": C})
