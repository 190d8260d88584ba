"""Kernels run by Triton's interpreter: the tests of tests/kernels that matter most, in few rows and with few heads.

The interpreter is chosen when triton is imported, so they run in processes of their own. All of them, some twenty
minutes: TRITON_INTERPRET=1 pytest tests/kernels
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from weft.settings import interpreted

ROOT = Path(__file__).resolve().parents[2]
CONFORMANCE, TRAPS, POISON = (f"tests/kernels/test_{name}.py::test" for name in ("conformance", "traps", "poison"))
CHOSEN = {
    "every pattern, option and layout": [f"{CONFORMANCE}_rows_meet_every_value", f"{CONFORMANCE}_pairwise"],
    "heads, scales and empty rows": [
        f"{CONFORMANCE}_batches_and_heads",
        f"{CONFORMANCE}_heads_of_a_group_with_other_patterns[3-triton]",
        f"{CONFORMANCE}_unusual_scales",
        f"{TRAPS}_rows_with_no_live_key",
        f"{TRAPS}_alibi_measures_from_the_aligned_query",
        f"{POISON}_in_everything_that_is_padding",
        f"{POISON}_in_keys_that_no_query_sees[residue classes-dtype0-triton]",
        f"{POISON}_in_keys_that_no_query_sees[before a window-dtype0-triton]",
    ],
}


@pytest.mark.skipif(torch.cuda.is_available() or interpreted(), reason="tests/kernels runs all of them here")
@pytest.mark.parametrize("chosen", CHOSEN)
def test_interpreted(chosen):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *CHOSEN[chosen]]
    settings = {"TRITON_INTERPRET": "1", "WEFT_TESTS": "few"}
    done = subprocess.run(command, cwd=ROOT, env=os.environ | settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-8000:]}\n{done.stderr[-2000:]}"
