"""A small problem of each kind of kernel, on the GPU at hand, for tools that watch its memory:

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck python -m tests.kernels.sanitized [KIND ...]

The problems are those that run as PTX (tests/ptx). Results are compared as always; their kernels go to standard output.
"""

import sys
from contextlib import contextmanager
from unittest import mock

from tests.ptx import test_fused, test_group_queries, test_groups, test_kernels, test_sparse_keys
from tests.ptx.problems import check

from weft.planning.families import fused_backward, sparse_keys
from weft.planning.families.hopper import CONFIGS
from weft.planning.tiling import DIRECTIONS
from weft.torch.card import at_hand

from .planned import bound, results, without_groups


def two_kernels():
    """Of gradients, whatever is predicted."""
    return mock.patch.object(fused_backward, "has_kernel", lambda *_: False)


@contextmanager
def in_step():
    """No warp groups specialise."""
    with without_groups(*DIRECTIONS), two_kernels():
        yield


@contextmanager
def walked():
    """All gradients of short windows come of one walk, whatever is predicted."""
    with (
        mock.patch.object(fused_backward, "window_seconds", lambda *_: 0.0),
        mock.patch.object(sparse_keys, "seconds", lambda *_: 0.0),
    ):
        yield


GROUPS = tuple(CONFIGS.items())
# Of every kind: what holds, problems, and the tilings that are asked for. All but the first are for Hopper.
KINDS = {
    "usual": (in_step, test_kernels.CALLS, ()),
    "keys by groups": (two_kernels, test_groups.CALLS, GROUPS),
    "queries by groups": (two_kernels, test_group_queries.CALLS, GROUPS),
    "one walk": (walked, test_fused.CALLS, ()),
    "few keys": (walked, test_sparse_keys.CALLS, ()),
}


@contextmanager
def said(what):
    """Say what was prepared meanwhile."""
    with bound() as programs:
        yield
    names = dict.fromkeys(launch.kernel.name for program in programs for launch in program.launches)
    print(f"{what}: {', '.join(names)}", flush=True)


def main(kinds):
    gpu = at_hand().gpu
    for kind in kinds or (KINDS if gpu.architecture == "sm_90" else ["usual"]):
        holds, calls, fixed = KINDS[kind]
        for name, call in calls.items():
            case = call.case()
            with holds(), said(f"{kind}, {name}"):
                check(case, results(case, gpu, fixed, "cuda"))
    test_kernels.by_rows(gpu, "cuda")
    print("by rows", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
