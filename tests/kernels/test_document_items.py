"""Items of documents made by the device from running sums, beside the oracle's, which are those that the host packs."""

import numpy as np
import pytest
import torch
from tests.gpu.test_oracle_documents import PATTERNS, SPEC, drawn

from weft.kernels.gpu.documents.spec import Sizes
from weft.kernels.gpu.oracle import run_program
from weft.kernels.gpu.programs.documents import document_items_program
from weft.torch.bind import Bound

from .compare import BACKENDS

pytestmark = pytest.mark.skipif("triton" not in BACKENDS, reason="other backends have no such kernels")
DEVICE = torch.device(BACKENDS.get("triton", "cpu"))


@pytest.mark.parametrize("name", PATTERNS)
def test_one_program_for_all_lengths(name):
    """No length is known to the host; documents may be empty, and have fewer keys than queries."""
    sizes = Sizes(9, 5000, 5000)  # more tiles than a program has
    program = document_items_program(PATTERNS[name], sizes, SPEC)
    bound = Bound(program, DEVICE)
    for seed, same in ((1, True), (2, False)):
        sums = [np.concatenate([[0], np.cumsum(x)]) for x in drawn(seed, 9, same)]
        (found,) = bound([torch.tensor(x, dtype=torch.int32, device=DEVICE) for x in sums])
        wanted = run_program(program, dict(zip(("of_queries", "of_keys"), sums, strict=True)))["items"]
        np.testing.assert_array_equal(found.cpu().numpy(), wanted)


@pytest.mark.skipif(DEVICE.type == "cpu", reason="captures need a GPU")
def test_a_captured_program_serves_all_lengths():
    program = document_items_program(PATTERNS["causal window"], Sizes(9, 400, 500), SPEC)
    bound = Bound(program, DEVICE)
    sums = [torch.zeros(10, dtype=torch.int32, device=DEVICE) for _ in range(2)]
    bound(sums)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (found,) = bound(sums)
    for seed in range(3):
        lengths = [np.concatenate([[0], np.cumsum(x)]) for x in drawn(seed, 9, False)]
        for one, other in zip(sums, lengths, strict=True):
            one.copy_(torch.tensor(other, dtype=torch.int32))
        graph.replay()
        wanted = run_program(program, dict(zip(("of_queries", "of_keys"), lengths, strict=True)))["items"]
        np.testing.assert_array_equal(found.cpu().numpy(), wanted)
