"""Steps of decoding run by Triton's interpreter, which is chosen when triton is imported: in processes of their own.

`make test` runs some of them in the process of tests/triton/test_interpreted.py.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from weft.settings import interpreted

ROOT = Path(__file__).resolve().parents[2]


FILES = [
    ["tests/kernels/test_counts.py"],
    ["tests/torch/test_decode.py"],
    ["tests/kernels/test_paged_keys.py", "tests/kernels/test_documents.py"],
]


@pytest.mark.more
@pytest.mark.skipif(torch.cuda.is_available() or interpreted(), reason="these tests run here")
@pytest.mark.parametrize("files", FILES, ids=lambda files: files[0].split("/")[-1])
def test_interpreted(files):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not wide", *files]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-8000:]}\n{done.stderr[-2000:]}"
