"""Launches of the backward that overlap leave the same bits as launches that follow each other."""

from unittest import mock

import pytest
import torch

import weft
from weft.kernels.gpu import configure
from weft.settings import interpreted

from .compare import BACKENDS, Case, generator, qkv
from .planned import forget, nothing_is_set

pytestmark = pytest.mark.skipif("triton" not in BACKENDS or interpreted(), reason="launches overlap on GPUs")

TOKENS = 3000
PATTERNS = {
    "causal": weft.causal(),
    "window": weft.causal() & weft.window(left=200),
    "joined": weft.causal() & (weft.window(left=100) | weft.periodic_keys(16)),
    "grid": weft.neighborhood((50, 60), (9, 11)),
}


@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("name", PATTERNS)
def test_same_bits(name, softcap):
    """Twenty times, in memory that holds no number before; dQ is unlike long where it is causal."""
    tensors = qkv(generator(f"chain {name}"), (TOKENS, TOKENS), torch.bfloat16, (8, 8), (64, 64))
    case = Case(PATTERNS[name], tensors, backend="triton", options={"softcap": softcap}, live=torch.tensor(True))
    with mock.patch.object(configure, "chained", lambda *_: False):
        forget()
        first = case.weft()
    forget()
    with nothing_is_set():
        for _ in range(20):
            again = case.weft()
            assert all(torch.equal(first[quantity], again[quantity]) for quantity in first)
