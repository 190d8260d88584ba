"""How long a test takes, said by a mark: by none, `more` or `wide`.

| mark | command | which tests |
| --- | --- | --- |
| none | `make test` | what is quick of every floor and law, and samples of the rest: some three minutes on two cores |
| `more` | `make test-more` | the rest of what a change must pass, within ten |
| `wide` | `make test-gpu` | what compiles for longer, on a machine with a GPU: there all tests of kernels run |

A test of both is of the longer one. Drawn tests have no mark: they run in `make test` with few examples, and again in
`make test-more` with all.
"""

import pytest

FEWEST, PART = 10, 8

quick = False  # whether this run leaves out what is marked `more`; conftest.py knows


def examples(count, few=None):
    """How many examples a drawn test has that should have `count`: `few` in `make test`, or else an eighth of them."""
    return min(count, few or max(FEWEST, count // PART)) if quick else count


def sample(values, *chosen):
    """Parameters: of the values those that are chosen in `make test`, the others in `make test-more`."""
    values = list(values)
    unknown = [value for value in chosen if value not in values]
    assert not unknown, f"no such values: {unknown}"
    return [value if value in chosen else _more(value) for value in values]


def every(step, values):
    """Parameters: each `step`-th of the values in `make test`, the others in `make test-more`."""
    return [_more(value) if place % step else value for place, value in enumerate(values)]


def _more(value):
    if hasattr(value, "marks"):  # a pytest.param
        return value._replace(marks=(*value.marks, pytest.mark.more))
    # a tuple is a value for each of several arguments
    return pytest.param(*value if isinstance(value, tuple) else (value,), marks=pytest.mark.more)
