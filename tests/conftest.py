"""Settings of every test run."""

import gc
import os
from pathlib import Path

from hypothesis import is_hypothesis_test
from tests import tiers

# Tensors in tests are small: a second thread only waits, and takes the core from whatever else runs. Set before torch
# is imported, so that processes started by tests inherit it; OMP_NUM_THREADS=2 pytest ... decides otherwise.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Files that take longest, the first of them minutes: begun last, each would leave the other workers without work.
LONGEST = (
    "triton/test_compile.py", "triton/test_interpreted.py", "docs/test_site.py", "torch/test_layouts.py",
    "ptx/test_group_queries.py", "ptx/test_kernels.py", "torch/test_compile.py", "ptx/test_fused.py",
    "kernels/test_conformance.py", "ptx/test_sparse_keys.py", "triton/test_rowwise.py", "ptx/test_groups.py",
    "gpu/test_oracle_cases.py", "test_demo.py",
)  # fmt: skip
ROOT = Path(__file__).parent


def pytest_configure(config):
    from weft.settings import interpreted  # late: it may import torch

    tiers.quick = "not more" in config.option.markexpr
    if interpreted():
        from tests.triton.quick import quicken

        quicken()


def pytest_collection_modifyitems(items):
    """The longest files first (with --no-loadscope-reorder: by itself xdist begins with those of most tests).

    Drawn tests run again among those that are marked `more`.
    """
    if not tiers.quick:
        for item in filter(lambda item: is_hypothesis_test(getattr(item, "obj", None)), items):
            item.add_marker("more")
    order = {ROOT / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path, len(order)))


def pytest_collection_finish():
    """What is there by now stays, all of torch for one: the collector need not walk it again and again."""
    gc.collect()
    gc.freeze()
