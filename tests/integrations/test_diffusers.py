"""Models of diffusers with random weights under patterns, beside the same models with a dense mask: outputs, and the
gradients of every parameter.
"""

import copy
import pickle
import warnings
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from weft.errors import InputError, UnsupportedError
from weft.integrations.diffusers import clear_pattern, set_pattern
from weft.integrations.diffusers.rules import Rule, Tiles
from weft.testing.refusals import refuse

from .test_diffusers_rules import tiles, together, window, with_text

# More: importing the models takes seconds. Warnings are diffusers', and torch's of autocast.
pytestmark = [
    pytest.mark.more,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(find_spec("diffusers") is None, reason="needs diffusers, which is not installed"),
]
SDPA = torch.nn.functional.scaled_dot_product_attention
GRID, TEXT, BATCH = (4, 6, 8), 6, 2
TOKENS = 4 * 6 * 8


class Dense(TorchFunctionMode):
    """Calls of torch's attention over all tokens have a dense mask too, joined to the model's own."""

    def __init__(self, mask_of):
        super().__init__()
        self.mask_of, self.calls = mask_of, 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is SDPA:
            q, k = kwargs["query"] if "query" in kwargs else args[0], kwargs["key"] if "key" in kwargs else args[1]
            if q.shape[2] == k.shape[2] >= TOKENS:
                self.calls += 1
                mask, own = self.mask_of(q.shape[2] - TOKENS), kwargs.get("attn_mask")
                kwargs = {**kwargs, "attn_mask": mask if own is None else mask & own}
        return func(*args, **kwargs)


def random(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def wan():
    from diffusers import WanTransformer3DModel

    model = WanTransformer3DModel(
        patch_size=(1, 2, 2), num_attention_heads=2, attention_head_dim=12, in_channels=4, out_channels=4, text_dim=16,
        freq_dim=16, ffn_dim=32, num_layers=2, rope_max_seq_len=32,
    )  # fmt: skip
    return model, {"hidden_states": random(BATCH, 4, 4, 12, 16)}


def hunyuan():
    from diffusers import HunyuanVideoTransformer3DModel

    model = HunyuanVideoTransformer3DModel(
        in_channels=4, out_channels=4, num_attention_heads=2, attention_head_dim=10, num_layers=1, num_single_layers=1,
        num_refiner_layers=1, patch_size=2, patch_size_t=1, text_embed_dim=16, pooled_projection_dim=8,
        rope_axes_dim=(2, 4, 4),
    )  # fmt: skip
    return model, {
        "hidden_states": random(BATCH, 4, 4, 12, 16), "encoder_attention_mask": VALID.long(),
        "pooled_projections": random(BATCH, 8), "guidance": torch.full((BATCH,), 1000.0),
    }  # fmt: skip


def ltx():
    from diffusers import LTXVideoTransformer3DModel

    model = LTXVideoTransformer3DModel(
        in_channels=8, out_channels=8, num_attention_heads=2, attention_head_dim=12, cross_attention_dim=24,
        num_layers=2, caption_channels=16,
    )  # fmt: skip
    return model, {
        "hidden_states": random(BATCH, TOKENS, 8), "encoder_attention_mask": VALID.float(),
        "num_frames": 4, "height": 6, "width": 8,
    }  # fmt: skip


def cogvideox():
    from diffusers import CogVideoXTransformer3DModel

    model = CogVideoXTransformer3DModel(
        num_attention_heads=2, attention_head_dim=16, in_channels=4, out_channels=4, time_embed_dim=8,
        text_embed_dim=16, num_layers=2, sample_width=16, sample_height=12, sample_frames=13, patch_size=2,
        max_text_seq_length=TEXT,
    )  # fmt: skip
    return model, {"hidden_states": random(BATCH, 4, 4, 12, 16)}


def mochi():
    from diffusers import MochiTransformer3DModel

    model = MochiTransformer3DModel(
        patch_size=2, num_attention_heads=2, attention_head_dim=8, num_layers=2, pooled_projection_dim=16,
        in_channels=4, text_embed_dim=16, time_embed_dim=4, max_sequence_length=TEXT,
    )  # fmt: skip
    return model, {"hidden_states": random(BATCH, 4, 4, 12, 16), "encoder_attention_mask": VALID}


def kandinsky():
    from diffusers import Kandinsky5Transformer3DModel

    model = Kandinsky5Transformer3DModel(
        in_visual_dim=4, out_visual_dim=4, in_text_dim=16, in_text_dim2=8, time_dim=16, model_dim=24, ff_dim=32,
        num_text_blocks=1, num_visual_blocks=2, axes_dims=(4, 4, 4),
    )  # fmt: skip
    return model, {
        "hidden_states": random(BATCH, 4, 12, 16, 4), "pooled_projections": random(BATCH, 8),
        "visual_rope_pos": [torch.arange(n) for n in GRID], "text_rope_pos": torch.arange(TEXT),
    }  # fmt: skip


VALID = torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 0]]).bool()
MODELS = [wan, hunyuan, ltx, cogvideox, mochi, kandinsky]
by_model = pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
NEAR = {"neighborhood": (3, 3, 5)}
TILES = {"sliding_tile": {"tile": (1, 2, 4), "window": (3, 3, 1)}}


def made(make):
    """(model in evaluation with weights of unit order, arguments of its forward)."""
    torch.manual_seed(0)
    model, given = make()
    with torch.no_grad():
        for x in model.parameters():
            x.normal_(0, 0.2)
    text = random(BATCH, TEXT, 16, seed=2)
    return model.eval(), given | {"encoder_hidden_states": text, "timestep": torch.tensor([3, 7])}


def run(model, given):
    """The output, and the gradients of all parameters."""
    out = model(**given, return_dict=False)[0]
    loss = (out * random(*out.shape, seed=5)).sum()
    return [out, *torch.autograd.grad(loss, [x for x in model.parameters() if x.requires_grad], allow_unused=True)]


def near(ours, theirs):
    for one, other in zip(ours, theirs, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            assert (one - other).abs().max() <= 2e-5 * max(1.0, other.abs().max())


@by_model
@pytest.mark.parametrize("given", [NEAR, TILES], ids=["neighborhood", "sliding_tile"])
def test_beside_a_dense_mask(make, given):
    """Text stands first, last or apart, and its padding stays out."""
    if given is NEAR:
        video = together([window(*one) for one in zip(GRID, NEAR["neighborhood"], strict=True)])
    else:
        video = together([tiles(*one, "pushed") for one in zip(GRID, *TILES["sliding_tile"].values(), strict=True)])
    model, arguments = made(make)
    dense = Dense(lambda text: torch.from_numpy(with_text(video, text, make is cogvideox)))
    plain = run(model, arguments)
    with dense:
        expected = run(model, arguments)
    assert dense.calls == 2 * (BATCH if make is mochi else 1)
    set_pattern(model, **given)
    found = run(model, arguments)
    near(found, expected)
    assert (found[0] - plain[0]).abs().max() > 1e-3  # the pattern matters
    clear_pattern(model)
    assert all(torch.equal(a, b) for a, b in zip(run(model, arguments), plain, strict=True) if a is not None)


@by_model
def test_a_window_of_everything_is_dense(make):
    model, arguments = made(make)
    expected = run(model, arguments)
    set_pattern(model, neighborhood=1000)
    near(run(model, arguments), expected)


@by_model
def test_layers(make):
    """A rule for one layer leaves the other one as it is."""
    model, arguments = made(make)
    video = together([window(*one) for one in zip(GRID, NEAR["neighborhood"], strict=True)])
    masks = [np.ones_like(video), video]

    def mask_of(text):
        layer = (dense.calls - 1) // (BATCH if make is mochi else 1)
        return torch.from_numpy(with_text(masks[layer], text, make is cogvideox))

    with Dense(mask_of) as dense, torch.no_grad():
        expected = model(**arguments, return_dict=False)[0]
    set_pattern(model, **NEAR, layers=[-1])
    with torch.no_grad():
        near([model(**arguments, return_dict=False)[0]], [expected])


@by_model
def test_compiled(make):
    """In one graph, but for Mochi, whose processor reads the host."""
    torch._dynamo.reset()
    model, arguments = made(make)
    set_pattern(model, **NEAR, layers=[1])
    expected = run(model, arguments)
    compiled = torch.compile(model, fullgraph=make is not mochi, backend="aot_eager")
    out = compiled(**arguments, return_dict=False)[0]
    near([out], expected[:1])
    with torch.no_grad():
        near([compiled(**arguments, return_dict=False)[0]], expected[:1])


@by_model
def test_copies_have_rules_of_their_own(make):
    model, arguments = made(make)
    set_pattern(model, **NEAR)
    expected = run(model, arguments)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        near(run(copied, arguments), expected)
        set_pattern(copied)  # dense
        assert (run(copied, arguments)[0] - expected[0]).abs().max() > 1e-3
    near(run(model, arguments), expected)


def test_gradient_checkpointing_and_training():
    model, arguments = made(wan)
    set_pattern(model, **NEAR)
    expected = run(model, arguments)
    model.train()
    model.enable_gradient_checkpointing()
    near(run(model, arguments), expected)


def test_fused_projections():
    model, arguments = made(wan)
    set_pattern(model, **NEAR)
    expected = run(model, arguments)[0]
    for block in model.blocks:
        block.attn1.fuse_projections()
    with torch.no_grad():
        near([model(**arguments, return_dict=False)[0]], [expected])


def test_another_backend_changes_nothing():
    model, arguments = made(wan)
    set_pattern(model, **NEAR)
    expected = run(model, arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in model.modules():
            if hasattr(getattr(module, "processor", None), "_attention_backend"):
                module.processor._attention_backend = "_native_math"
    near(run(model, arguments), expected)


def test_what_is_refused():
    model, arguments = made(wan)
    set_pattern(model, **NEAR)
    for block in model.blocks:
        block.attn1.processor._parallel_config = object()
    refuse(lambda: model(**arguments), UnsupportedError, ["parallel_config"])
    model, arguments = made(ltx)
    set_pattern(model, **NEAR)
    refuse(lambda: model(**arguments | {"num_frames": None}), InputError, ["num_frames"])


def test_sliding_tiles_of_kandinsky():
    """The tiles of its pipeline, which asks for 8 x 8 tokens in blocks; here they keep their order."""
    from diffusers import Kandinsky5T2VPipeline
    from diffusers.models.transformers.transformer_kandinsky import local_patching

    grid, window = (3, 16, 24), (3, 1, 3)
    blocks = Kandinsky5T2VPipeline.fast_sta_nabla(3, 2, 3, *window, device="cpu")
    place = local_patching(torch.arange(3 * 16 * 24).view(1, *grid, 1), (1, *grid), (1, 8, 8), dim=1).flatten()
    block = torch.empty_like(place)
    block[place] = torch.arange(place.numel()) // 64
    rule = Rule(tiles=Tiles((1, 8, 8), window, "cut"))
    assert torch.equal(torch.from_numpy(rule.video(grid).to_dense(3 * 16 * 24)), blocks[block][:, block].bool())


def test_kandinskys_own_blocks_are_refused_beside_a_pattern():
    model, arguments = made(kandinsky)
    set_pattern(model, **NEAR)
    arguments["hidden_states"] = random(BATCH, 1, 32, 32, 4)
    arguments["visual_rope_pos"] = [torch.arange(n) for n in (1, 16, 16)]
    told = {"sta_mask": torch.ones(1, 1, 4, 4).bool(), "P": 0.9, "to_fractal": True}
    said = ["BlockMask", "blocks of 8 x 8", "regular"]
    refuse(lambda: model(**arguments, sparse_params=told), UnsupportedError, said)
