"""A few drawn problems; more of them, and interpreted or as PTX: `python -m tests.kernels.drawn`."""

from hypothesis import HealthCheck, given, settings

from .compare import FEW
from .drawn import cases, compare


# the same problems in every run: a commit has one verdict
@settings(
    max_examples=5 if FEW else 40, deadline=None, derandomize=True, database=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
@given(cases())
def test_drawn(drawn):
    case, usual, _ = drawn
    compare(case, usual)
