"""Models under weft inside torch.compile(fullgraph=True), and steps of static caches whose counts the device holds."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

models = pytest.importorskip("tests.integrations.models", exc_type=ImportError)
from transformers import masking_utils

from weft.integrations.transformers import register
from weft.integrations.transformers.masks import mask

pytestmark = pytest.mark.more  # to import transformers takes seconds
register()
PACKED = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 0, 1, 2, 3]] * 3)


@pytest.fixture(autouse=True)
def _forgotten():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(model, run):
    """What a run gives whose model is one graph, and how many graphs were made."""
    counter = CompileCounterWithBackend("aot_eager")
    found = models.under(model, "weft", lambda model: run(torch.compile(model, fullgraph=True, backend=counter)))
    return found, counter.frame_count


@pytest.mark.parametrize("name", ["Llama", "Gemma3Text", "GptOss", "Llama4Text"])
def test_packed_with_gradients(name):
    ids, _ = models.tokens()
    model = models.decoder(name)

    def run(called):
        model.zero_grad()
        logits = called(ids, position_ids=PACKED, use_cache=False).logits
        logits.square().sum().backward()
        return logits.detach(), torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    want = models.under(model, "eager", run)
    got, graphs = compiled(model, run)
    assert graphs == 1
    for x, y in zip(got, want, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-5 * float(y.abs().max()))


@pytest.mark.parametrize("name", ["Llama", "Llama4Text"])
def test_padded(name):
    ids, padding = models.tokens()
    model, rows = models.decoder(name), padding.bool()

    def run(called):
        with torch.no_grad():
            return called(ids, attention_mask=padding, use_cache=False).logits[rows]

    got, graphs = compiled(model, run)
    assert graphs == 1
    torch.testing.assert_close(got, models.under(model, "eager", run), rtol=2e-6, atol=2e-6)


def decoded(model, monkeypatch, backend):
    """24 tokens with a static cache, each step by a compiled forward, as generate() does on a GPU."""
    ids, padding = models.tokens()
    with monkeypatch.context() as patch:
        if backend is not None:
            called = torch.compile(model.forward, fullgraph=True, backend=backend)
            patch.setattr(model, "get_compiled_call", lambda config: called)
            patch.setattr(model, "_valid_auto_compile_criteria", lambda *args, **kwargs: True)
        return model.generate(
            ids, attention_mask=padding, max_new_tokens=24, min_new_tokens=24, do_sample=False, pad_token_id=0,
            cache_implementation="static",
        )  # fmt: skip


@pytest.mark.parametrize("name", ["Llama", "Gemma3Text"])
def test_static_decoding(name, monkeypatch):
    model = models.decoder(name)
    counter = CompileCounterWithBackend("aot_eager")
    want = models.under(model, "eager", lambda model: decoded(model, monkeypatch, None))
    got = models.under(model, "weft", lambda model: decoded(model, monkeypatch, counter))
    assert torch.equal(got, want)
    # the layer of a window has one graph before it is full, and one after
    assert counter.frame_count == (1 if name == "Llama" else 2)


def test_counts_are_not_read():
    """On a device without numbers nothing of a step's mask can depend on them."""
    padding = torch.ones(3, 9, dtype=torch.bool, device="meta")
    made = mask(
        3, 1, 16, torch.empty((), dtype=torch.int64, device="meta"), 0, attention_mask=padding, device="meta",
        mask_function=masking_utils.sliding_window_causal_mask_function(4), allow_is_causal_skip=False,
    )  # fmt: skip
    assert made.slots.keys.shape == made.slots.window.shape == (3,)


def test_counts():
    padding = torch.tensor([[False, False, True, True, True], [True] * 5])
    one = {"allow_is_causal_skip": False, "attention_mask": padding}
    made = mask(2, 1, 16, torch.tensor(4), 0, **one)
    assert (made.slots.keys.tolist(), made.slots.window.tolist()) == ([5, 5], [3, 5])
    window = masking_utils.sliding_window_causal_mask_function(4)
    made = mask(2, 1, 4, 4, 1, mask_function=window, **one)
    assert (made.slots.keys.tolist(), made.slots.window.tolist()) == ([4, 4], [3, 4])
    chunks = masking_utils.chunked_causal_mask_function(3, torch.tensor([2, 0]))
    made = mask(2, 1, 16, torch.tensor(4), 0, mask_function=chunks, **one)
    assert made.slots.window.tolist() == [3, 2]


def test_holes():
    """Padding after the first token: on the host another pattern; in a graph the device refuses it."""
    padding = torch.tensor([[True, True, False, True, True]])
    made = mask(1, 1, 16, torch.tensor(4), 0, attention_mask=padding, allow_is_causal_skip=False)
    assert made.slots is None
    assert made.pattern.to_dense(1, 5)[..., 0, :].ravel().tolist() == padding[0].tolist()

    @torch.compile(fullgraph=True, backend="eager")
    def keys(padding):
        made = mask(1, 1, 16, torch.tensor(4), 0, attention_mask=padding, allow_is_causal_skip=False)
        return made.slots.window

    assert keys(torch.tensor([[False, True, True, True, True]])).tolist() == [4]
    with pytest.raises(RuntimeError, match="padding after the first token"):
        keys(padding)
