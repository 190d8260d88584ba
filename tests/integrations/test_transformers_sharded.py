"""Models of transformers whose ranks hold a sequence together, beside one process."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

pytestmark = [
    pytest.mark.more,
    pytest.mark.skipif(not torch.distributed.is_available(), reason="torch has no torch.distributed"),
]


@pytest.mark.parametrize(
    ("name", "world", "shards"), [("gemma3", 3, "contiguous"), ("gemma3", 2, "zigzag"), ("llama4", 2, "contiguous")]
)
def test_losses_and_gradients(tmp_path, name, world, shards):
    from tests.integrations.sharded import begin

    torch.multiprocessing.spawn(begin, (world, str(tmp_path), name, shards), nprocs=world)
