"""Attention over gloo processes beside one process: `processes` says what each of them checks."""

import pytest

torch = pytest.importorskip("torch")

from tests.tiers import every

from weft.distributed import attention
from weft.errors import OptionError
from weft.testing.refusals import refuse

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch has no torch.distributed")


def run(tmp_path, world, check, *given):
    """Start processes that meet at a file, and raise what the first one to fail says."""
    from .processes import begin

    torch.multiprocessing.spawn(begin, (world, str(tmp_path), check, *given), nprocs=world)


ALL = [
    "window", "both sides", "causal", "longformer", "dilated", "documents", "chunks", "2-D", "3-D", "text and video",
    "blocks", "no key",
]  # fmt: skip
CHECKS = [
    "check_refusals", "check_poison", "check_ways_to_call", "check_scores", "check_dtensors", "check_module",
    "check_decode", "check_dropout",
]  # fmt: skip
SOME = ["window", "longformer", "2-D"]


@pytest.mark.parametrize(("world", "names"), every(4, [(3, SOME), (2, SOME), (4, ALL), (8, SOME)]))
def test_values(tmp_path, world, names):
    run(tmp_path, world, "check_values", names)


@pytest.mark.more
@pytest.mark.parametrize("world", [2, 3, 4])
def test_keys_travel_in_groups_of_heads(tmp_path, world):
    run(tmp_path, world, "check_pieces", SOME + ["documents", "3-D"] * (world == 4))


@pytest.mark.parametrize("check", every(4, CHECKS))
def test_beside_values(tmp_path, check):
    run(tmp_path, 3, check)


@pytest.mark.more
def test_nodes(tmp_path):
    run(tmp_path, 4, "check_nodes")


def test_without_a_group():
    q = torch.zeros(1, 1, 4, 8)
    refuse(lambda: attention(q, q, q, None), OptionError, ("no process group", "init_process_group"))
