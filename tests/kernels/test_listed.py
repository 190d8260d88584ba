"""Listed tokens that all see: kernels gather them, and other terms leave them out, one by one.

Their dK and dV were once wrong on a GPU, at D=128 and three stages, for some rows of a tile and the neighbours of some
listed tokens, though the emitted source was right (`weft.kernels.gpu.compile.miscompiles.spoiled`): so lists are drawn.
"""

import pytest
import torch

import weft

from .compare import BACKENDS, FEW, Case, check, generator, qkv

pytestmark = pytest.mark.skipif("triton" not in BACKENDS, reason="of this backend's kernels")

TOKENS = 330
BESIDE = {
    "window": weft.window(8, 8),
    "causal window": weft.causal() & weft.window(left=50),
    "grid": weft.neighborhood((15, 22), (5, 7)),
}


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("d", [128] if FEW else [64, 80, 96, 128])
@pytest.mark.parametrize("count", [4] if FEW else [1, 4, 9, 40])
@pytest.mark.parametrize("name", BESIDE)
def test_drawn_lists(name, count, d, kv_heads):
    random = generator(f"listed {name} {count} {d} {kv_heads}")
    tokens = torch.randperm(TOKENS, generator=random)[:count].sort().values.tolist()
    tensors = qkv(random, (TOKENS, TOKENS), torch.bfloat16, (4, kv_heads), (d, d), 1)
    check(Case(BESIDE[name] | weft.global_tokens(tokens), tensors, backend="triton"))
