"""Attention over the GPUs of one host; skipped by name without two of them. `nccl` says what each process checks.

The same checks run over gloo processes in `make test-more`, so that what is not of NCCL fails without GPUs too.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.distributed import nccl

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch has no torch.distributed")
WORLD = 2
VALUES = [f"values:{name}" for name in nccl.CASES]
BITS = [f"bits:{name}" for name in ("window", "longformer", "2-D")]
ON_CPU = ["values:chunks", "values:window", "bits:window", "compiled"]
BACKENDS = {"nccl": [*VALUES, *BITS, "compiled", "graph"], "gloo": ON_CPU}


def available(backend):
    return backend == "gloo" or torch.cuda.device_count() >= WORLD


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What processes that were started once said, by backend."""
    found = {}

    def run(backend):
        if backend not in found:
            folder = tmp_path_factory.mktemp(backend)
            context = torch.multiprocessing.spawn(
                nccl.begin, (WORLD, str(folder), backend, BACKENDS[backend]), nprocs=WORLD, join=False
            )
            raised = "the processes ended before it"
            try:
                while not context.join():
                    pass
            except Exception as error:
                raised = str(error)
            found[backend] = folder, raised
        return found[backend]

    return run


@pytest.mark.parametrize(
    ("backend", "check"),
    [
        pytest.param(backend, check, marks=[pytest.mark.more] * (backend == "gloo"))
        for backend, checks in BACKENDS.items()
        for check in checks
    ],
)
def test_of_ranks(backend, check, results):
    if not available(backend):
        pytest.skip(f"needs {WORLD} GPUs")
    folder, raised = results(backend)
    for rank in range(WORLD):
        said = Path(folder, f"{check.replace(' ', '_')}.{rank}")
        text = said.read_text() if said.exists() else raised
        assert not text, f"rank {rank}:\n{text}"


@pytest.mark.parametrize("backend", ["nccl", pytest.param("gloo", marks=pytest.mark.more)])
def test_killed_rank(backend, tmp_path):
    """The other ends with c10d's error within its timeout, and so does its process, which frees its GPU."""
    if not available(backend):
        pytest.skip(f"needs {WORLD} GPUs")
    root = Path(__file__).parents[2]
    given = {**os.environ, "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}"}
    command = [sys.executable, "-m", "tests.distributed.nccl"]
    begun = time.monotonic()
    started = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path), backend], env=given, cwd=root, text=True,
            stdout=subprocess.DEVNULL if rank else subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        for rank in range(WORLD)
    ]  # fmt: skip
    try:
        said, _ = started[0].communicate(timeout=100)
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert started[1].returncode == -9
    assert started[0].returncode not in (0, None), said
    assert "RAISED" in said or "timeout" in said.lower() or "ncclRemoteError" in said, said
    assert time.monotonic() - begun < 100
