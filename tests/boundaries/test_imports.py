"""What importing weft may cost and may pull in. Each check is a fresh process: in this one, everything is loaded."""

import subprocess
import sys

import pytest

FRAMEWORKS = ("torch", "triton", "jax", "matplotlib")
NUMPY_FLOORS = ("errors", "pattern", "acsr", "recognition", "planning", "kernels", "runtime")
IMPORT_SECONDS = 0.15  # on top of numpy


def fresh(code: str) -> str:
    """Standard output of `code`, run by this interpreter in a new process."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{code}\nfailed with\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("module", ["weft", *(f"weft.{floor}" for floor in NUMPY_FLOORS)])
def test_import_brings_in_no_framework(module):
    loaded = fresh(f"import sys, {module}; print(*[name for name in {FRAMEWORKS} if name in sys.modules])")
    assert loaded.split() == []


def test_import_is_quick():
    # numpy goes first, so its time is not counted. The best of five: a busy machine only ever adds to it.
    clock = "import numpy, time; t = time.perf_counter(); import weft; print(time.perf_counter() - t)"
    seconds = [float(fresh(clock)) for _ in range(5)]
    assert min(seconds) < IMPORT_SECONDS, f"import weft takes {min(seconds):.3f} s"


def test_patterns_work_without_any_framework():
    # None in sys.modules makes `import torch` fail, as on a machine that has no torch.
    hide = f"import sys; sys.modules.update(dict.fromkeys({FRAMEWORKS}))"
    dense = fresh(f"{hide}; import weft; print(*weft.window(left=3).to_dense(8).astype(int).ravel())")
    # left=3 and no bound to the right: all but the keys more than three before the query
    assert dense.split() == [str(int(k - q >= -3)) for q in range(8) for k in range(8)]
