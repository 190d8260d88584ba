"""Greedy generation under weft: the same 64 tokens as under eager attention, for every cache."""

import pytest
import torch

models = pytest.importorskip("tests.integrations.models", exc_type=ImportError)
import transformers

from weft.integrations.transformers import register

pytestmark = pytest.mark.more  # to import transformers takes seconds
register()


def generated(model, **options):
    ids, padding = models.tokens()
    return model.generate(
        ids, attention_mask=padding, max_new_tokens=64, min_new_tokens=64, do_sample=False, pad_token_id=0, **options
    )


@pytest.mark.parametrize("name", models.DECODERS)
@pytest.mark.parametrize("cache", ["dynamic", "static", None])
def test_greedy(name, cache):
    options = {"use_cache": False} if cache is None else {"cache_implementation": cache}
    want, got = (
        models.under(models.decoder(name), under, lambda model: generated(model, **options))
        for under in ("eager", "weft")
    )
    assert want.shape == (3, 76)
    assert torch.equal(got, want)


def test_greedy_of_t5():
    ids, padding = models.tokens()
    for cache in ("dynamic", "static"):
        want, got = (
            models.under(
                models.t5(),
                under,
                lambda model, cache=cache: model.generate(
                    ids, attention_mask=padding.flip(1), max_new_tokens=64, min_new_tokens=64, do_sample=False,
                    cache_implementation=cache,
                ),
            )
            for under in ("eager", "weft")
        )  # fmt: skip
        assert torch.equal(got, want)


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_continued_in_pieces(static, padded):
    """A prompt in two pieces, then more at once."""
    ids, padding = models.tokens(length=20)
    padding = padding if padded else torch.ones_like(padding)
    for name in ("Mistral", "Gemma3Text", "Llama4Text"):
        model = models.decoder(name)

        def run(model):
            kind = transformers.StaticCache if static else transformers.DynamicCache
            cache, found = kind(config=model.config, **({"max_cache_len": 32} if static else {})), []
            with torch.no_grad():
                for first, after in ((0, 7), (7, 11), (11, 19), (19, 20)):
                    mask = padding[:, :after]
                    found.append(model(ids[:, first:after], attention_mask=mask, cache=cache).logits)
            return torch.cat(found, 1)[padding.bool()]

        want, got = (models.under(model, under, run) for under in ("eager", "weft"))
        torch.testing.assert_close(got, want, rtol=2e-6, atol=2e-6)
