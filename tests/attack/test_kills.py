"""Processes that are killed while they compile for real: the store has whole entries, or none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import weft
from weft.store import Store

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="it forks")

# One process imports Triton, and others that fork from it compile and are killed.
CODE = """
import os, random, signal, sys, time
from triton.backends.compiler import GPUTarget
from weft.kernels.gpu.compile import compiler, load
from weft.kernels.gpu.spec import KernelSpec
kills, dice, alive = int(sys.argv[1]), random.Random(0), 0
target = GPUTarget("cuda", 90, 32)
def made(rows, cols, rank):
    load.stored(KernelSpec("forward", "bfloat16", rows, cols, rank, 64, 64, warps=4, stages=2), target)
began = time.monotonic()
child = os.fork()
if child == 0:
    made(16, 16, 0)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
long = time.monotonic() - began  # of one kernel, here and now
for number in range(kills):
    child = os.fork()
    if child == 0:
        while True:
            made(dice.choice([16, 32, 64]), dice.choice([16, 32, 64]), number % 3)
    dice.random(), dice.random()
    time.sleep(random.Random(number).uniform(0, 1.5 * long))
    os.kill(child, signal.SIGKILL)
    alive += os.WIFSIGNALED(os.waitpid(child, 0)[1])
print(alive)
"""


@pytest.mark.more
def test_a_hundred_kills(tmp_path):
    place = tmp_path / "cache"
    env = os.environ | {"WEFT_CACHE_DIR": str(place), "PYTHONPATH": str(Path(weft.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", CODE, "100"], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) == 100, "children ended by themselves"
    store = Store(place, 1 << 30)
    whole = [one for one in store.entries() if one.state == ""]
    assert whole and store.verify() == {}
    assert all(store.get(one.path.name) for one in whole)
    assert {one.state for one in store.entries()} <= {"", "new"}  # what was being written is no entry
