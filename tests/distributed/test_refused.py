"""What calls over ranks refuse before anything is exchanged, in a group of one process."""

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist

import weft
from weft.distributed import attention, decode_attention
from weft.errors import OptionError, UnsupportedError
from weft.testing.refusals import refuse

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch has no torch.distributed")


@pytest.fixture(autouse=True)
def _alone(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/ranks", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def tensors(tokens=4, grad=False):
    return [torch.zeros(1, 1, tokens, 8, requires_grad=grad) for _ in range(3)]


@pytest.mark.parametrize("first, total", [(-1, 4), (1, 4), (0, 3)])
def test_keys_outside_of_the_sequence(first, total):
    call = lambda: decode_attention(*tensors(), weft.causal(), first=first, total=total)  # noqa: E731
    refuse(call, OptionError, (f"first={first}", "not within the sequence"))


def test_decoding_has_no_gradients():
    call = lambda: decode_attention(*tensors(grad=True), weft.causal(), first=0, total=4)  # noqa: E731
    refuse(call, UnsupportedError, ("no gradients", "torch.no_grad()"))


def test_a_first_call_in_a_capture(monkeypatch):
    """Tensors of a CPU pass for a GPU's, and nothing is captured."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    call = lambda: attention(*tensors(8), weft.causal())  # noqa: E731
    refuse(call, UnsupportedError, ("CUDA graph is captured", "before the capture"))
