"""How long a test takes, said by a mark: by none, `more` or `wide`.

| mark | command | which tests |
| --- | --- | --- |
| none | `make test` | what is quick of every floor and law, and samples of the rest: three minutes on two cores |
| `more` | `make test-more` | the rest of what a change must pass, within ten |
| `wide` | `make test-gpu` | what compiles for hours, on a machine with a GPU: there all tests of kernels run |

A test of both is of the longer one.
"""

import pytest


def sample(values, *chosen):
    """Parameters: of the values those that are chosen in `make test`, the others in `make test-more`."""
    values = list(values)
    unknown = [value for value in chosen if value not in values]
    assert not unknown, f"no such values: {unknown}"
    return [value if value in chosen else _more(value) for value in values]


def _more(value):
    return pytest.param(*value if isinstance(value, tuple) else (value,), marks=pytest.mark.more)
