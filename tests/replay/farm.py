"""Traces and kernels made in other processes, each with the version of Triton that is asked for.

This module and what imports it stay free of torch and Triton: a process decides for a version before it imports one.
"""

import os
import pickle
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from importlib import metadata
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class NoTritonError(Exception):
    """A version of Triton is not installed."""


def home_of(version):
    """Where a version of Triton lies beside the environment, as `make replay` puts it; None: it is the environment's.

    Raises NoTritonError where it is neither.
    """
    beside = ROOT / f".venv-triton-{version}"
    if (beside / "triton").is_dir():
        return beside
    try:
        installed = metadata.version("triton")
    except metadata.PackageNotFoundError:
        installed = "none"
    if installed == version:
        return None
    raise NoTritonError(
        f"The gate compiles with Triton {version}. The environment has {installed}, and {beside.name} is not there. "
        f"Run: python -m pip install --no-deps --target {beside.name} triton=={version}"
    )


@contextmanager
def farm(version, workers):
    """A pool of processes with a version of Triton, whose caches are empty and go with it."""
    home = home_of(version)
    with tempfile.TemporaryDirectory(prefix="weft-replay-") as cache:
        settings = None if home is None else str(home), version, cache
        with ProcessPoolExecutor(workers, get_context("spawn"), _begin, settings) as pool:
            try:
                yield pool
            finally:
                pool.shutdown(cancel_futures=True)


def _begin(home, version, cache):
    """In a new process: no setting of the user's, no kernel of an earlier run, and this Triton."""
    for name in [name for name in os.environ if name.startswith("TRITON_")]:
        del os.environ[name]
    os.environ |= {"TRITON_CACHE_DIR": cache, "TRITON_ALWAYS_COMPILE": "1", "WEFT_CACHE_DIR": "off"}
    os.environ["OMP_NUM_THREADS"] = "1"
    if home is not None:
        sys.path.insert(0, home)
    import triton

    assert triton.__version__ == version, f"Triton {triton.__version__} was imported, {version} was asked for"


# ---- what a process of the pool does ---------------------------------------------------------------------------------
def trace_case(name, target):
    """(lines of the plan, {launch: kernel}) of a case; kernels are pickled, equal ones to equal bytes."""
    from .adapter import trace
    from .cases import CASES
    from .plan_text import plan_lines

    found = trace(CASES[name], target)
    kernels = {
        f"{phase}.{i}": pickle.dumps(one.kernel)
        for phase, launched in found.phases.items()
        for i, one in enumerate(launched)
    }
    return plan_lines(found), kernels


def measure_kernel(kernel, target):
    """The `Measured` of a pickled kernel."""
    from weft.errors import UnsupportedKernel

    from .adapter import compile_kernel
    from .machine import measure
    from .measured import Measured

    try:
        return measure(compile_kernel(pickle.loads(kernel), target), target)
    except UnsupportedKernel as refusal:
        return Measured(refused=str(refusal).splitlines()[0])


def gather(pool, wanted, say=lambda text: None, compiles=True):
    """({(case, target): lines}, {(case, target, launch): Measured}) of all (case, target) that are wanted.

    A kernel that several launches have is compiled once. say: told how far it is. compiles: else there are plans alone.
    """
    traces = {key: pool.submit(trace_case, *key) for key in wanted}
    plans, places = {}, {}
    futures = {}
    for (case, target), future in traces.items():
        plans[case, target], kernels = future.result()
        for launch, kernel in kernels.items() if compiles else ():
            places[case, target, launch] = kernel, target
            if (kernel, target) not in futures:
                futures[kernel, target] = pool.submit(measure_kernel, kernel, target)
    for done, _ in enumerate(as_completed(futures.values()), 1):
        say(f"{done} of {len(futures)} kernels")
    return plans, {place: futures[key].result() for place, key in places.items()}
