"""NVIDIA's compute-sanitizer finds nothing in a small problem of each kind of kernel, on the GPU at hand."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

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


@pytest.mark.wide
@pytest.mark.parametrize(
    ("tool", "kinds"),
    [
        ("memcheck", ()),
        # It does not see that a thread which arrives at an mbarrier has waited for others (docs/decisions/0010).
        ("racecheck", ("usual",)),
    ],
)
def test_nothing_is_found(tool, kinds, settings):
    asked = [TOOL, "--tool", tool, sys.executable, "-m", "tests.kernels.sanitized", *kinds]
    done = subprocess.run(asked, cwd=ROOT, env=settings, capture_output=True, text=True, check=False)
    if "Device not supported" in done.stdout + done.stderr:
        pytest.skip("compute-sanitizer does not know this machine's devices")
    assert done.returncode == 0 and CLEAN[tool] in done.stdout, (done.stdout + done.stderr)[-5000:]
    assert "by rows" in done.stdout
