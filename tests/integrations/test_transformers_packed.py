"""Packed documents as running sums: models say the same as under eager attention, and other lengths need no plan.

A GPU is what takes them so. Here tensors of the CPU are taken for its own.
"""

import copy

import pytest
import torch

models = pytest.importorskip("tests.integrations.models", exc_type=ImportError)
masking = pytest.importorskip("transformers.masking_utils")

import weft
from weft.integrations.transformers import packed as module
from weft.integrations.transformers import register, set_pattern
from weft.integrations.transformers.masks import mask

pytestmark = pytest.mark.more  # to import transformers takes seconds
register()
POSITIONS = torch.tensor([[*range(9), *range(3), *range(12)], [*range(24)]])


@pytest.fixture
def on_gpu(monkeypatch):
    """What a GPU would be asked; returns how often documents were computed by their sums."""
    calls = []
    attend = module.Packed.attend
    monkeypatch.setattr(module, "_on_gpu", lambda ids: True)
    monkeypatch.setattr(module.Packed, "attend", lambda self, *a, **o: calls.append(self) or attend(self, *a, **o))
    return calls


def made(positions, *functions):
    """The mask of causal documents that begin where positions do."""
    ids = masking.find_packed_sequence_indices(positions)
    base = functions or (masking.causal_mask_function,)
    function = masking.and_masks(*base, masking.packed_sequence_mask_function(ids))
    return mask(*positions.shape, positions.shape[1], 0, 0, mask_function=function)


def trained(model, ids, positions):
    """The loss, and the gradients of all parameters."""
    model = copy.deepcopy(model).train()
    loss = model(ids, labels=ids, position_ids=positions, use_cache=False).loss
    loss.backward()
    return [loss.detach(), *(x.grad for x in model.parameters() if x.grad is not None)]


@pytest.mark.parametrize("name", ["Llama", "Mistral", "Gemma2", "Qwen3"])
def test_training(name, on_gpu):
    """Of full, windowed and mixed layers, with shared keys and soft caps."""
    ids = models.tokens(2, 24)[0]
    want, got = (
        models.under(models.decoder(name), under, lambda model: trained(model, ids, POSITIONS))
        for under in ("eager", "weft")
    )
    assert len(on_gpu) == 2 and len(got) == len(want) > 2  # one call a layer
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-6)


def test_other_lengths_are_the_same_to_a_plan(on_gpu):
    """The pattern of a document is one object, and there is room for more documents than there are."""
    other = torch.tensor([[*range(20), *range(4)], [*range(1), *range(23)]])
    first, second = made(POSITIONS).packed, made(other).packed
    assert first.seen is second.seen and first.longest == second.longest == 24
    assert first.sums.tolist() == [0, 9, 12] + [24] + [48] * 13
    assert second.sums.tolist() == [0, 20, 24, 25] + [48] * 13


def test_a_pattern_is_made_when_it_is_asked_for(on_gpu):
    """It says the same, and a layer with a pattern of its own is computed by it."""
    found = made(POSITIONS)
    assert "packed documents" in str(found)
    with_lengths = found.packed.whole().to_dense(24, 24)
    assert found.pattern.to_dense(24, 24).tolist() == with_lengths.tolist()
    model = copy.deepcopy(models.decoder("Llama"))
    set_pattern(model, weft.causal() & weft.window(left=3), layers=[1])
    ids = models.tokens(2, 24)[0]
    narrowed = model(ids, position_ids=POSITIONS, use_cache=False).logits
    assert len(on_gpu) == 1  # the other layer
    wide = torch.ones(24, 24, dtype=torch.bool).tril().triu(-3)
    tensor = torch.from_numpy(with_lengths).expand(2, 1, -1, -1)
    model.config.weft_patterns = {}
    layers = [tensor, tensor & wide]
    for layer, seen in zip(model.model.layers, layers, strict=True):
        layer.register_forward_pre_hook(
            lambda _, args, told, seen=seen: (args, {**told, "attention_mask": seen}), with_kwargs=True
        )
    want = model(ids, position_ids=POSITIONS, use_cache=False).logits
    torch.testing.assert_close(narrowed, want, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("what", ["falls", "chunks", "padding", "a later piece"])
def test_what_has_no_sums_is_a_pattern(what, on_gpu):
    ids = masking.find_packed_sequence_indices(POSITIONS)
    same = masking.packed_sequence_mask_function
    given, place, function = {}, (24, 24, 0, 0), masking.and_masks(masking.causal_mask_function, same(ids))
    if what == "falls":  # documents 0, 1, 0
        function = same(torch.tensor([[0] * 8 + [1] * 8 + [0] * 8] * 2))
    elif what == "chunks":
        chunks = masking.chunked_causal_mask_function(5, torch.zeros(2, dtype=int))
        function = masking.and_masks(masking.remap_positions_for_packed_sequence(chunks, POSITIONS), same(ids))
    elif what == "padding":
        given["attention_mask"] = torch.arange(24)[None] >= torch.tensor([[3], [0]])
    else:
        place = (4, 24, 20, 0)
    found = mask(2, *place, mask_function=function, **given)
    want = masking.sdpa_mask(2, *place, mask_function=function, allow_is_causal_skip=False, **given)
    assert found.packed is None
    assert torch.equal(torch.from_numpy(found.pattern.to_dense(*place[:2])).expand(2, 1, -1, -1), want)
