"""NVIDIA's compute-sanitizer finds nothing in a small problem of each kind of kernel, on the GPU at hand."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from .sanitized import KINDS

ROOT = Path(__file__).resolve().parents[2]
TOOL = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
    pytest.mark.skipif(TOOL is None, reason="no compute-sanitizer"),
]


CLEAN = {"memcheck": "ERROR SUMMARY: 0 errors", "racecheck": "RACECHECK SUMMARY: 0 hazards"}


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    """Kernels are compiled once; what torch would keep of memory is given back, since it hides what lies beyond."""
    kept = str(tmp_path_factory.mktemp("kernels"))
    return os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "WEFT_CACHE_DIR": kept}


HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9


# Racecheck does not see that a thread which arrives at an mbarrier has waited for others (docs/decisions/0010): not of
# kernels whose warps specialise.
@pytest.mark.wide
@pytest.mark.parametrize(("tool", "kind"), [("racecheck", "usual"), *(("memcheck", kind) for kind in KINDS)])
def test_nothing_is_found(tool, kind, settings):
    if kind != "usual" and not HOPPER:
        pytest.skip("no Hopper card")
    # the driver says where a kernel's arguments end by an error (`weft.torch.driver`), which memcheck would count
    quiet = ["--report-api-errors", "no"] if tool == "memcheck" else []
    asked = [TOOL, "--tool", tool, *quiet, sys.executable, "-m", "tests.kernels.sanitized", kind]
    done = subprocess.run(asked, cwd=ROOT, env=settings, capture_output=True, text=True, check=False)
    if "Device not supported" in done.stdout + done.stderr:
        pytest.skip("compute-sanitizer does not know this machine's devices")
    assert done.returncode == 0 and CLEAN[tool] in done.stdout, (done.stdout + done.stderr)[-5000:]
    assert "by rows" in done.stdout
