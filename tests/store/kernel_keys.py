"""Specs whose kernels take functions and numbers from every file of fragments; run, it prints their keys."""

import json
import sys
from dataclasses import replace

from triton.backends.compiler import GPUTarget

from weft.kernels.gpu.compile import compiler, load
from weft.kernels.gpu.configure import fused_spec, sparse_specs
from weft.kernels.gpu.sinks import gradient_source, join_source
from weft.kernels.gpu.spec import KernelSpec
from weft.kernels.gpu.split_kv.source import source_of as split_kv_source
from weft.kernels.gpu.split_kv.spec import SplitKVSpec, combining
from weft.planning.problem import Problem

HOPPER, AMD = GPUTarget("cuda", 90, 32), GPUTarget("hip", "gfx942", 64)
SMALL = KernelSpec("forward", "bfloat16", 16, 16, 0, 64, 64, warps=4)  # quick to compile
WIDE = KernelSpec("forward", "bfloat16", 64, 64, 0, 256, 64, groups=4)
SHORT = Problem(1, 2, 2, 4096, 4096, 64, 64, "bfloat16", "cuda")
SPECS = {
    **{one: replace(SMALL, direction=one, rank=1) for one in ("forward", "dq", "dkdv", "delta")},
    "forward of blocks": SMALL,
    "forward in groups": WIDE,
    "short forward in groups": replace(WIDE, rank=1, lines=True, short=True),
    "dkdv in groups": replace(WIDE, direction="dkdv", groups=2, rows=128),
    "gradients in groups": fused_spec(SHORT),
    "few keys": sparse_specs(SHORT)[0],
    "sums of few keys": sparse_specs(SHORT)[1],
}
ROWS = SplitKVSpec("bfloat16", 64, 64, 16, 64)
SPLIT_KV = {"split-KV": ROWS, "combined shares": combining(ROWS, 33)}


def sources():
    """Written anew; those of split-KV and of sinks too, which have specifications of their own."""
    found = {name: load.source_of.__wrapped__(spec) for name, spec in SPECS.items()}
    found |= {name: split_kv_source.__wrapped__(spec) for name, spec in SPLIT_KV.items()}
    found["gradient of sinks"] = gradient_source.__wrapped__()
    return found | {"joined sinks": join_source.__wrapped__("bfloat16", 80)}


def keys():
    """name -> the keys of both targets."""
    return {
        name: [compiler.key_of(one, target) for target in (HOPPER, AMD) if not (one.gluon and target is AMD)]
        for name, one in sources().items()
    }


if __name__ == "__main__":
    assert "torch" not in sys.modules
    print(json.dumps(keys()))
