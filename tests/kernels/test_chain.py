"""Launches of the backward that overlap leave the same bits as launches that follow each other."""

from math import nan
from unittest import mock

import pytest
import torch

import weft
from weft.kernels.triton import configure, run
from weft.kernels.triton.launch import Prepared
from weft.settings import interpreted

from .compare import BACKENDS, Case, generator, qkv

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
        run.prepared.cache_clear()
        first = case.weft()
    run.prepared.cache_clear()
    empty = Prepared.empty
    with mock.patch.object(Prepared, "empty", lambda *some: [x.fill_(nan) for x in empty(*some)]):
        for _ in range(20):
            again = case.weft()
            assert all(torch.equal(first[quantity], again[quantity]) for quantity in first)
