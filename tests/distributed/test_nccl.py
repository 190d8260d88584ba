"""Attention over the GPUs of one host; skipped by name without two of them. `nccl` says what each process checks.

The same checks run over gloo processes in `make test-more`, so that what is not of NCCL fails without GPUs too.
"""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.distributed import nccl

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch has no torch.distributed")
COUNTS = {"nccl": min(4, max(2, torch.cuda.device_count())), "gloo": 2}  # processes
VALUES = [f"values:{name}" for name in nccl.CASES]
BITS = [f"bits:{name}" for name in ("window", "longformer", "2-D")]
GROUPED = [f"groups:{name}" for name in ("2-D", "window")]
DROPPED = [f"dropout:{name}" for name in ("window", "2-D", "longformer", "heads")]
ON_CPU = ["values:chunks", "values:window", "bits:window", "compiled", "dropout:window", "groups:window"]
ABREAST = 6  # groups at once: a GPU that many processes share seldom runs all ranks of one group at a time
# by backend: groups of checks, each of processes of its own; several run at once, since each compiles other kernels
GROUPS = {
    "nccl": [[*pair] for pair in zip(VALUES[::2], VALUES[1::2], strict=True)]
    + [BITS[:2], [*BITS[2:], "compiled", "graph"], DROPPED[:2], DROPPED[2:], GROUPED],
    "gloo": [ON_CPU],
}


def available(backend):
    return backend == "gloo" or torch.cuda.device_count() >= COUNTS[backend]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The folders of what processes said, by backend, which are started once; and what else was raised."""
    found = {}

    def run(backend):
        if backend not in found:
            folders = [tmp_path_factory.mktemp(backend) for _ in GROUPS[backend]]
            world = COUNTS[backend]
            pairs, raised = list(zip(folders, GROUPS[backend], strict=True)), []
            for at in range(0, len(pairs), ABREAST):
                contexts = [
                    torch.multiprocessing.spawn(
                        nccl.begin, (world, str(folder), backend, checks), nprocs=world, join=False
                    )
                    for folder, checks in pairs[at : at + ABREAST]
                ]
                raised += [ended(context) for context in contexts]
            found[backend] = folders, raised
        return found[backend]

    return run


def ended(context):
    """Wait for processes; what they raised, if they did."""
    try:
        while not context.join():
            pass
    except Exception as error:
        return str(error)
    return "the processes ended before it"


@pytest.mark.parametrize(
    ("backend", "group", "check"),
    [
        pytest.param(backend, group, check, marks=[pytest.mark.more] * (backend == "gloo"))
        for backend, groups in GROUPS.items()
        for group, checks in enumerate(groups)
        for check in checks
    ],
)
def test_of_ranks(backend, group, check, results):
    if not available(backend):
        pytest.skip(f"needs {COUNTS[backend]} GPUs")
    folders, raised = results(backend)
    for rank in range(COUNTS[backend]):
        said = Path(folders[group], f"{check.replace(' ', '_')}.{rank}")
        text = said.read_text() if said.exists() else raised[group]
        assert not text, f"rank {rank}:\n{text}"


@pytest.mark.parametrize("backend", ["nccl", pytest.param("gloo", marks=pytest.mark.more)])
def test_killed_rank(backend, tmp_path):
    """The others end with c10d's error within its timeout, and so do their processes, which free their GPUs."""
    if not available(backend):
        pytest.skip(f"needs {COUNTS[backend]} GPUs")
    world = COUNTS[backend]
    root = Path(__file__).parents[2]
    given = {**os.environ, "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}"}
    command = [sys.executable, "-m", "tests.distributed.nccl"]
    begun = time.monotonic()
    started = []
    for rank in range(world):
        with Path(tmp_path, f"said.{rank}").open("w") as file:
            own = [*command, str(rank), str(world), str(tmp_path), backend]
            started.append(subprocess.Popen(own, env=given, cwd=root, stdout=file, stderr=subprocess.STDOUT))
    others = [rank for rank in range(world) if rank != 1]
    try:
        for rank in others:
            started[rank].wait(timeout=max(1.0, 120 - (time.monotonic() - begun)))
    finally:
        for process in started:
            process.kill()
            process.wait()
    texts = [Path(tmp_path, f"said.{rank}").read_text() for rank in range(world)]
    assert started[1].returncode == -9, texts[1]
    for rank in others:
        said = texts[rank]
        assert started[rank].returncode not in (0, None), said
        assert not re.search(r"Timeout \(\d", said), f"rank {rank} waits:\n{said}"  # by faulthandler
        assert "RAISED" in said or "timeout" in said.lower() or "ncclRemoteError" in said, said
    if backend == "nccl":
        assert not held_by({process.pid for process in started})


def held_by(processes):
    """Those of some processes that hold memory of a GPU."""
    command = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return processes & {int(x) for x in said if x.isdigit()}
