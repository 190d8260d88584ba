"""Planning, packing, describing and compiling a program import no torch, whether it is installed or not."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

CODE = """
import sys
sys.modules["torch"] = None  # any import of it fails
import weft
from weft.kernels.gpu.programs.kernels import Asked, kernels_of
from weft.planning.attention_plan import plan_attention
from weft.planning.problem import Problem
from weft.target import GPUS

masks = weft.causal() & weft.window(left=127), weft.longformer(256, 8), weft.neighborhood((32, 64), (7, 7))
for mask in masks:
    plan = plan_attention(mask, Problem(1, 4, 2, 2048, 2048, 64, 64, "bfloat16", "cuda"), GPUS["h200"])
    plan.verify()
    kernels = kernels_of(plan, Asked(sinks=True))
    print(*sorted(kernel.name for kernel in kernels))

from triton.backends.compiler import GPUTarget
from weft.kernels.gpu.compile.compiler import compile_for

made = compile_for(kernels[0], GPUTarget("cuda", 90, 32))
print(made.metadata.name, len(made.asm["cubin"]) > 0)
assert not any(name.startswith("torch.") for name in sys.modules)
"""


@pytest.mark.skipif(find_spec("triton") is None, reason="kernels are made with Triton")
def test_a_program_is_made_and_compiled(tmp_path):
    environment = {"WEFT_CACHE_DIR": str(tmp_path / "weft"), "TRITON_CACHE_DIR": str(tmp_path / "triton")}
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    *names, last = done.stdout.splitlines()
    assert len(names) == 3 and all("sink_gradient" in line for line in names)
    assert last.startswith("weft_fwd_hopper_grid2_d64_bf16") and last.endswith("True")
