"""What a backend is known to do wrong: such a test must fail, so that a line here goes with the defect."""

import re

import pytest

# backend -> (pattern of a test's id, why it fails)
KNOWN = {
    "triton": [
        (r"test_pairwise\[(global_tokens|global_columns)-", "listed tokens are read as neighbours"),
        (r"test_pairwise\[\w+-65x130-bottom-right-.*-(alibi|all)-", "dK and dV add the shift of ALiBi twice"),
        (r"test_alibi_measures_from_the_aligned_query\[bottom-right", "dK and dV add the shift of ALiBi twice"),
        (r"test_unusual_scales\[.*softcap.*10000", "tanh loses small arguments"),
        (r"test_in_keys_that_no_query_sees\[(causal, fewer|before a)", "0 * NaN in the dK of a key without a query"),
        (r"test_in_queries_of_other_rows", "lse of a row of NaN is -inf"),
    ]
}


def pytest_collection_modifyitems(items):
    for item in items:
        params = item.callspec.params if hasattr(item, "callspec") else {}
        for pattern, why in KNOWN.get(params.get("backend"), ()):
            if re.search(pattern, item.nodeid):
                item.add_marker(pytest.mark.xfail(raises=AssertionError, strict=True, reason=why))
