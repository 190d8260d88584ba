"""Vectors beside tensors (lse, its gradient, sinks, slopes) that lie anywhere, in any dtype: not a bit changes."""

import pytest
import torch

import weft
from weft.target import GPU
from weft.torch import gpu

from .compare import BACKENDS, Case, generator, normal, qkv
from .planned import planned

pytestmark = pytest.mark.skipif("triton" not in BACKENDS, reason="other backends take torch's operations")
DEVICE = BACKENDS.get("triton")
ODD = {
    "off 16 bytes": lambda x: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape),
    "apart": lambda x: torch.stack([x, -x], -1)[..., 0],
    "in float64": lambda x: x.double(),
    "expanded": lambda x: x[:1].expand(x.shape),  # all alike, as a sum's gradient is
}
PATTERNS = {
    "window": weft.causal() & weft.window(left=20),
    "several launches": weft.bigbird(16),
    "rows without keys": weft.causal(offset=-3) & weft.window(left=20),
}


@pytest.mark.parametrize("how", ODD)
@pytest.mark.parametrize("name", PATTERNS)
def test_results_are_the_same(name, how):
    random = generator(f"vectors {name}")
    tensors = [x.to(DEVICE) for x in qkv(random, (70, 70), torch.float32, (2, 1), batch=1)]
    sinks, slopes = torch.full((2,), 0.5, device=DEVICE), torch.full((2,), 0.25, device=DEVICE)
    case = Case(PATTERNS[name], tensors, options={"sinks": sinks, "alibi_slopes": slopes}, backend="triton")
    plan, modifiers, _ = planned(case, GPU)
    out, lse = gpu.forward(tensors, plan, modifiers, sinks)
    dout, dlse = normal(out.shape, random, torch.float32).to(DEVICE), torch.full_like(lse, 0.5)
    *first, delta = gpu.backward(tensors, (out, dout, lse, dlse), plan, modifiers)
    first.append(gpu.sink_gradient(sinks, lse, delta))
    change = ODD[how]
    again_out, again_lse = gpu.forward(tensors, plan, modifiers, change(sinks))
    other = lse if how == "expanded" else change(lse)
    *again, delta = gpu.backward(tensors, (out, dout, other, change(dlse)), plan, modifiers)
    again.append(gpu.sink_gradient(change(sinks), lse, delta).to(torch.float32))
    for x, y in zip((out, lse, *first), (again_out, again_lse, *again), strict=True):
        assert torch.equal(x, y)
