"""Other libraries' models with weft inside, each where its library is installed: a text model of transformers, a video
block of diffusers, and JAX.

Each is run by weft and as its library runs it, with the same weights and the same mask, and the results are compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from math import prod
from typing import Any

import numpy as np
import torch

import weft
from weft.demo.inputs import Pack, embed_text
from weft.demo.measure import best_of, largest

TIMES = 3
ALLOWED = 1e-4  # float32 through some layers, in two orders of summation; outputs are numbers near 1


@dataclass(frozen=True)
class Outcome:
    """What came of one guest: tokens; seconds by weft and by the library's own attention; the largest difference."""

    tokens: int
    weft: float
    own: float
    apart: float

    @property
    def wrong(self) -> str:
        """Why the check fails; empty if it does not. Written so that NaN fails."""
        return "" if self.apart <= ALLOWED else f"{self.apart:.1e} apart, allowed {ALLOWED:.0e}"


@dataclass(frozen=True)
class Guest:
    """One model. module: what is imported, and weft's extra of that name. what: a line for the reader."""

    name: str
    module: str
    what: str
    run: Callable[[Pack, bool], Outcome]

    @property
    def here(self) -> bool:
        """Whether its library is installed."""
        return find_spec(self.module) is not None


def compared(mine: Callable[[], Any], own: Callable[[], Any], tokens: int) -> Outcome:
    """Both results, timed and compared."""
    with torch.no_grad():
        (fast, a), (slow, b) = best_of(TIMES, mine), best_of(TIMES, own)
    return Outcome(tokens, fast, slow, largest(a, b))


# ---- text: transformers ----------------------------------------------------------------------------------------------
def text_model(pack: Pack, quick: bool) -> Outcome:
    """Mistral with random weights on the packed bytes: its logits by weft and by `sdpa`."""
    from transformers import AutoModelForCausalLM, MistralConfig

    from weft.integrations.transformers import register

    register()
    tokens = min(pack.tokens.size, 1024 if quick else 4096)
    config = MistralConfig(
        vocab_size=256, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, sliding_window=tokens // 32, max_position_embeddings=tokens, bos_token_id=None,
        eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    torch.manual_seed(6)
    model = AutoModelForCausalLM.from_config(config).eval()
    ids = torch.from_numpy(pack.tokens[:tokens].astype(np.int64))[None]
    places = torch.cat([torch.arange(length) for length in pack.lengths])[None, :tokens]

    def logits(attention: str) -> torch.Tensor:
        model.set_attn_implementation(attention)
        found: torch.Tensor = model(ids, position_ids=places, use_cache=False).logits
        return found

    return compared(lambda: logits("weft"), lambda: logits("sdpa"), tokens)


# ---- video: diffusers ------------------------------------------------------------------------------------------------
def video_block(pack: Pack, quick: bool) -> Outcome:
    """A block of Wan with random weights on noise: under a neighbourhood by weft, and by torch with the same mask."""
    from diffusers import WanTransformer3DModel

    from weft.integrations.diffusers import clear_pattern, set_pattern

    grid, window = ((4, 8, 12), (3, 5, 5)) if quick else ((9, 16, 28), (3, 7, 9))
    torch.manual_seed(7)
    model = WanTransformer3DModel(
        num_attention_heads=4, attention_head_dim=64, in_channels=4, out_channels=4, text_dim=32, freq_dim=32,
        ffn_dim=512, num_layers=1,
    ).eval()  # fmt: skip
    frames, rows, columns = grid
    latents = torch.randn(1, 4, frames, 2 * rows, 2 * columns)  # a token has 1 x 2 x 2 latents
    given = {"timestep": torch.tensor([500]), "encoder_hidden_states": torch.randn(1, 16, 32)}
    mask = torch.from_numpy(weft.neighborhood(grid, window).to_dense(prod(grid)))
    plain = [block.attn1.processor for block in model.blocks]

    def sample() -> torch.Tensor:
        found: torch.Tensor = model(latents, **given).sample
        return found

    set_pattern(model, neighborhood=window)
    with torch.no_grad():
        fast, mine = best_of(TIMES, sample)
        clear_pattern(model)
        for block, processor in zip(model.blocks, plain, strict=True):
            block.attn1.set_processor(Masked(processor, mask))
        slow, own = best_of(TIMES, sample)
    return Outcome(prod(grid), fast, slow, largest(mine, own))


class Masked:
    """A processor of diffusers with a mask over the tokens of a video."""

    def __init__(self, processor: Any, mask: torch.Tensor) -> None:
        self.processor, self.mask = processor, mask

    def __call__(self, attn: Any, hidden: Any, encoder: Any = None, mask: Any = None, *rest: Any, **kw: Any) -> Any:
        return self.processor(attn, hidden, encoder, self.mask if mask is None else mask & self.mask, *rest, **kw)


# ---- JAX -------------------------------------------------------------------------------------------------------------
def in_jax(pack: Pack, quick: bool) -> Outcome:
    """A causal window over the packed bytes, jitted: by weft.jax and by jax.nn."""
    import jax

    import weft.jax

    tokens = min(pack.tokens.size, 1024 if quick else 4096)
    left = tokens // 32 - 1
    q, k, v = (x.transpose(1, 2).numpy() for x in embed_text(pack.tokens[:tokens]))
    mask = weft.causal() & weft.window(left=left)
    mine = jax.jit(lambda q, k, v: weft.jax.attention(q, k, v, mask))
    own = jax.jit(lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True, local_window_size=(left, 0)))

    def called(function: Any) -> Callable[[], torch.Tensor]:
        return lambda: torch.from_numpy(np.array(function(q, k, v)))

    return compared(called(mine), called(own), tokens)


GUESTS = (
    Guest("text model", "transformers", "Mistral, 2 layers, sliding window in packed documents; own: sdpa", text_model),
    Guest("video block", "diffusers", "Wan, 1 block, 3-D neighbourhood; own: sdpa with the mask", video_block),
    Guest("JAX", "jax", "a causal window, jitted; own: jax.nn.dot_product_attention", in_jax),
)
