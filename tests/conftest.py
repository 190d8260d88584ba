"""Settings of every test run."""

import os

# Tensors in tests are small: a second thread only waits, and takes the core from whatever else runs. Set before torch
# is imported, so that processes started by tests inherit it; OMP_NUM_THREADS=2 pytest ... decides otherwise.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Files that take minutes: begun last, each would leave the other workers without work.
LONGEST = ("test_interpreted.py", "test_compile.py")


def pytest_configure():
    from weft.settings import interpreted  # late: it may import torch

    if interpreted():
        from tests.triton.quick import quicken

        quicken()


def pytest_collection_modifyitems(items):
    """The longest files first (with --no-loadscope-reorder: by itself xdist begins with those of most tests)."""
    items.sort(key=lambda item: not (item.path.parent.name == "triton" and item.path.name in LONGEST))
