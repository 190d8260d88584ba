"""JAX as its tests want it: on four devices of the CPU, and compiled quickly rather than well."""

import os
from importlib.util import find_spec

import pytest

# Read when JAX is imported: four devices, so that sharding is tested; on a GPU no trials of matrix products; and no
# optimisation, which takes most of the time.
FLAGS = "--xla_force_host_platform_device_count=4 --xla_gpu_autotune_level=0"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAGS}".strip()
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")


class Skipped(pytest.Module):
    """A file that imports JAX, where there is none."""

    def collect(self):
        pytest.skip("JAX is not installed", allow_module_level=True)


def pytest_pycollect_makemodule(module_path, parent):
    """Every file of this folder is skipped as a whole without JAX, before anything in it is imported."""
    return Skipped.from_parent(parent, path=module_path) if find_spec("jax") is None else None
