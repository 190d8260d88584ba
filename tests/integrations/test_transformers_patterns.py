"""`set_pattern`: a model under a pattern gives what it gives under a mask of four axes that says the same."""

import copy

import numpy as np
import pytest
import torch

import weft
from weft.errors import WeftError

models = pytest.importorskip("tests.integrations.models", exc_type=ImportError)
from torch._dynamo.testing import CompileCounterWithBackend

from weft.integrations.transformers import load_patterns, register, set_pattern

pytestmark = pytest.mark.more  # to import transformers takes seconds
register()
NEAR = weft.causal() & weft.window(left=2)
LONG = weft.causal() & (weft.window(left=1) | weft.periodic_keys(4))
HEADS = weft.per_head([NEAR, NEAR, LONG, weft.causal() & weft.chunks(5)])


def fresh(name="Llama"):
    return copy.deepcopy(models.decoder(name))


def masked(model, ids, pattern, padding):
    """Logits under eager attention and a boolean mask of the same meaning, all layers alike."""
    length = ids.shape[1]
    seen = torch.from_numpy(np.broadcast_to((pattern & weft.causal()).to_dense(length), (3, 4, length, length)).copy())
    return model(ids, attention_mask=torch.zeros(seen.shape).masked_fill(~(seen & padding[:, None, None]), -1e9)).logits


@pytest.mark.parametrize("pattern", [NEAR, LONG, HEADS], ids=str)
def test_all_layers(pattern):
    ids, padding = models.tokens()
    model = fresh()
    want = masked(model, ids, pattern, padding.bool())
    assert "2 of 2 layers" in set_pattern(model, pattern)
    got = model(ids, attention_mask=padding).logits
    live = padding.bool() & (padding.cumsum(1) > 3)  # rows whose near keys are no padding
    torch.testing.assert_close(got[live], want[live], rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("name", ["Llama", "Gemma3Text"])
@pytest.mark.parametrize("pattern", [NEAR, LONG, HEADS], ids=str)
def test_caches(name, pattern):
    ids, _ = models.tokens()
    model = fresh(name)
    set_pattern(model, pattern, layers=[1])
    options = {"max_new_tokens": 24, "min_new_tokens": 24, "do_sample": False, "pad_token_id": 0}
    want = model.generate(ids, use_cache=False, **options)
    for cache in ("dynamic", "static"):
        assert torch.equal(model.generate(ids, cache_implementation=cache, **options), want)
    set_pattern(model, None)
    assert not torch.equal(model.generate(ids, **options), want)


def test_saved_and_loaded(tmp_path):
    ids, _ = models.tokens()
    model = fresh()
    set_pattern(model, NEAR, layers=[0])
    set_pattern(model, LONG, layers=[1])
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path, attn_implementation="weft").eval()
    assert loaded.config.weft_patterns == {"0": str(NEAR), "1": str(LONG)}
    torch.testing.assert_close(loaded(ids).logits, model(ids).logits, rtol=0, atol=0)
    plain = type(model).from_pretrained(tmp_path, attn_implementation="eager").eval()
    assert not torch.allclose(plain(ids).logits, model(ids).logits)


def test_compiled():
    torch._dynamo.reset()
    ids, _ = models.tokens()
    model = fresh()
    set_pattern(model, NEAR, layers=[0])
    want = model(ids, use_cache=False).logits
    counter = CompileCounterWithBackend("aot_eager")
    load_patterns(model)
    got = torch.compile(model, fullgraph=True, backend=counter)(ids, use_cache=False).logits
    assert counter.frame_count == 1
    torch.testing.assert_close(got, want, rtol=2e-6, atol=2e-6)


def test_refusals():
    with pytest.raises(WeftError, match="has no layer 7"):
        set_pattern(fresh(), NEAR, layers=[7])
    with pytest.raises(WeftError, match="it is no pattern"):
        set_pattern(fresh(), lambda q, k: q >= k)
    with pytest.raises(WeftError, match=r"pass model\.encoder"):
        set_pattern(copy.deepcopy(models.t5()), NEAR)
    with pytest.raises(WeftError, match="layers that have"):
        set_pattern(copy.deepcopy(models.vit()), NEAR)
    model = fresh()
    set_pattern(model, NEAR)
    seen = torch.ones(3, 1, 12, 12, dtype=torch.bool)
    with pytest.raises(WeftError, match="LlamaAttention of layer 0"):
        model(models.tokens()[0], attention_mask=seen)
