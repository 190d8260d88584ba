"""A small problem of each kind of kernel, on the GPU at hand, for tools that watch its memory:

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck python -m tests.kernels.sanitized [KIND ...]

The problems are those that run as PTX (tests/ptx). Results are compared as always; their kernels go to standard output.
"""

import sys
from contextlib import contextmanager
from unittest import mock

import torch
from tests.ptx import test_few_keys, test_group_queries, test_groups, test_kernels, test_one_walk
from tests.ptx.problems import check

import weft
from weft.kernels.triton import decode, run
from weft.kernels.triton.card import at_hand
from weft.planning import few_keys, short
from weft.planning.candidates import IN_GROUPS

from .compare import Case, generator, qkv
from .planned import planned, results


@contextmanager
def usual():
    """No warp groups specialise, and two kernels make gradients."""
    with mock.patch.dict(IN_GROUPS, clear=True), mock.patch.object(short, "has_kernel", lambda *_: False):
        yield


@contextmanager
def by_groups():
    """Warp groups do in the forward and in dK and dV, where these are asked for so."""
    with mock.patch.object(short, "has_kernel", lambda *_: False):
        yield


@contextmanager
def one_walk():
    """All gradients of short windows come of one, whatever is predicted."""
    with mock.patch.object(short, "seconds", lambda *_: 0.0), mock.patch.object(few_keys, "seconds", lambda *_: 0.0):
        yield


# Of every kind: what holds, problems, and the tilings that are asked for. The first runs on any card.
KINDS = {
    "usual": (usual, test_kernels.CALLS, ()),
    "by groups": (by_groups, test_groups.CALLS | test_group_queries.CALLS, tuple(IN_GROUPS.items())),
    "one walk": (one_walk, test_one_walk.CALLS | test_few_keys.CALLS, ()),
}


@contextmanager
def said(what):
    """Say what was prepared meanwhile."""
    for kept in (run.prepared, run.prepared_rows, run.prepared_gradients):
        kept.cache_clear()
    with mock.patch.object(run, "kernel_of", wraps=run.kernel_of) as asked:
        yield
    names = dict.fromkeys(call.args[0].name for call in asked.call_args_list)
    print(f"{what}: {', '.join(names)}", flush=True)


def by_rows(gpu):
    """Few queries against many keys."""
    pattern = (weft.causal() & weft.window(left=200)).aligned("bottom-right")
    case = Case(pattern, qkv(generator("rows"), (3, 300), torch.bfloat16, (4, 2), (64, 64), 1), backend="triton")
    plan, how, _ = planned(case, gpu)
    out, lse = decode.forward(tuple(x.cuda() for x in case.tensors), plan, how, None)
    check(case, {"out": out.cpu(), "lse": lse.cpu()})
    print("by rows", flush=True)


def main(kinds):
    gpu = at_hand().gpu
    for kind in kinds or [*KINDS][: 3 if gpu.architecture == "sm_90" else 1]:
        holds, calls, fixed = KINDS[kind]
        for name, call in calls.items():
            case = call.case()
            with holds(), said(f"{kind}, {name}"):
                check(case, results(case, gpu, fixed, "cuda"))
    by_rows(gpu)


if __name__ == "__main__":
    main(sys.argv[1:])
