"""A few drawn problems; more of them, and interpreted or as PTX: `python -m tests.kernels.drawn`."""

from hypothesis import HealthCheck, given, settings

from .compare import FEW
from .drawn import cases, compare


@settings(max_examples=5 if FEW else 40, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases())
def test_drawn(drawn):
    case, usual, _ = drawn
    compare(case, usual)
