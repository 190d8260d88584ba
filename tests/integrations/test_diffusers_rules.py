"""Rules of diffusers' video transformers as patterns: against their definitions, pair by pair; no diffusers needed."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from weft.errors import OptionError, UnsupportedError
from weft.integrations import diffusers
from weft.integrations.diffusers.rules import rule_of
from weft.testing.refusals import refuse

DEFAULTS = dict.fromkeys(("neighborhood", "sliding_tile", "layers", "steps")) | {"stride": 1, "dilation": 1}


def rule(**given):
    return rule_of({**DEFAULTS, **given}, 4)


def window(length, size):
    """Booleans (length, length): a window of `size` around each, pushed inwards."""
    size = min(size, length)
    first = np.clip(np.arange(length) - size // 2, 0, length - size)[:, None]
    keys = np.arange(length)
    return (keys >= first) & (keys < first + size)


def tiles(length, tile, size, border):
    """A window of tiles around each tile."""
    own = np.arange(length) // tile
    if border == "cut":
        return abs(own[:, None] - own) <= size // 2
    return window(int(own[-1]) + 1, size)[own][:, own]


def together(parts):
    """Live where every axis is."""
    sides = [len(part) for part in parts]
    whole = np.ones((*sides, *sides), bool)
    for axis, part in enumerate(parts):
        shape = [1] * (2 * len(sides))
        shape[axis], shape[axis + len(sides)] = part.shape
        whole &= part.reshape(shape)
    return whole.reshape(np.prod(sides), -1)


def with_text(video, text, first):
    whole = np.ones((len(video) + text,) * 2, bool)
    at = text if first else 0
    whole[at : at + len(video), at : at + len(video)] = video
    return whole


GRIDS = [(3, 6, 8), (1, 5, 7), (4, 3, 9)]


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("text, first", [(0, False), (3, False), (3, True)])
def test_neighbourhoods(grid, text, first):
    """A window longer than an axis is all of it."""
    made = rule(neighborhood=(3, 4, 5)).pattern(grid, text, first)
    expected = with_text(together([window(*one) for one in zip(grid, (3, 4, 5), strict=True)]), text, first)
    assert (made.to_dense(len(expected)) == expected).all()


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("border", ["pushed", "cut"])
def test_sliding_tiles(grid, border):
    """Tiles that do not fill an axis too: the last one is smaller."""
    tile, sizes = (1, 2, 4), (3, 3, 1)
    made = rule(sliding_tile={"tile": tile, "window": sizes, "border": border}).pattern(grid, 2, True)
    each = zip(grid, tile, sizes, strict=True)
    expected = with_text(together([tiles(*one, border) for one in each]), 2, True)
    assert (made.to_dense(len(expected)) == expected).all()
    acsr = made.acsr(*expected.shape)
    assert not len(acsr.remainder)  # tiles are products, not blocks


def test_strides_and_dilation_are_those_of_the_library():
    made = rule(neighborhood=4, stride=(1, 2, 4), dilation=(1, 1, 2)).pattern((4, 8, 8), 0, False)
    assert str(made) == "neighborhood(shape=[4, 8, 8], size=[4, 4, 4], stride=[1, 2, 4], dilation=[1, 1, 2])"


@pytest.mark.parametrize("given, expected", [
    (None, {0, 1, 2, 3}), ([0, -1], {0, 3}), (2, {2}), ("1:", {1, 2, 3}), (":2", {0, 1}), ("1:3", {1, 2}),
    (range(1, 4, 2), {1, 3}), ((), set()),
])  # fmt: skip
def test_layers(given, expected):
    made = rule(neighborhood=3, layers=given)
    assert {layer for layer in range(4) if made.holds(layer, 0)} == expected


def test_steps():
    made = rule(neighborhood=3, steps="2:")
    assert [made.holds(0, step) for step in (0, 1, 2, 500)] == [False, False, True, True]
    assert rule(neighborhood=3, steps=[1]).holds(3, 1)


WRONG = {
    "one pattern": {"neighborhood": 3, "sliding_tile": {"tile": 1, "window": 3}},
    "belong to a neighbourhood": {"stride": 2},
    "length for each axis": {"neighborhood": (3, 3)},
    "neighborhood=0": {"neighborhood": 0},
    "longer than the window": {"neighborhood": 3, "stride": (4, 1, 1)},
    "as keys": {"sliding_tile": {"tile": 1}},
    "odd numbers": {"sliding_tile": {"tile": 1, "window": 2}},
    "pushed, cut": {"sliding_tile": {"tile": 1, "window": 3, "border": "open"}},
    "there are 4 layers": {"neighborhood": 3, "layers": [4]},
    "names no numbers": {"neighborhood": 3, "layers": "all"},
    "steps=1.5": {"neighborhood": 3, "steps": 1.5},
}


@pytest.mark.parametrize("words", WRONG)
def test_rules_that_mean_nothing(words):
    refuse(lambda: rule(**WRONG[words]), OptionError, [words])


# ---- a model of the right name ---------------------------------------------------------------------------------------
F = torch.nn.functional


class Processor:
    def __call__(self, attn, hidden_states, attention_mask=None):
        q, k, v = attn.to_qkv(hidden_states).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=attention_mask).transpose(1, 2).flatten(2)


class Unknown:
    def __call__(self, attn, hidden_states, attention_mask=None):
        return hidden_states


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.attn1 = torch.nn.Module()
        self.attn1.to_qkv = torch.nn.Linear(8, 24)
        self.attn1.processor = Processor()


class WanTransformer3DModel(torch.nn.Module):
    config = SimpleNamespace(patch_size=(1, 2, 2))

    def __init__(self, layers=3):
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block() for _ in range(layers)])

    def forward(self, hidden_states, attention_mask=None):
        x = hidden_states[:, :, :, ::2, ::2].flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = x + block.attn1.processor(block.attn1, x, attention_mask=attention_mask)
        return x


def model():
    torch.manual_seed(0)
    return WanTransformer3DModel(), torch.randn(2, 8, 3, 8, 12)


def test_rules_of_layers_and_steps():
    transformer, x = model()
    dense = transformer(x)
    diffusers.set_pattern(transformer, neighborhood=(1, 3, 3), layers="1:", steps="1:")
    assert torch.equal(transformer(x), dense)  # step 0
    after = diffusers.count_steps(transformer)
    pipe = SimpleNamespace(num_timesteps=2)
    assert after(pipe, 0, None, {"latents": x}) == {"latents": x}
    sparse = transformer(x)
    assert not torch.equal(sparse, dense)
    diffusers.set_pattern(transformer, layers=[0, 2])
    assert not torch.equal(transformer(x), sparse)
    diffusers.set_pattern(transformer)  # all dense
    assert torch.equal(transformer(x), dense)
    after(pipe, 1, None, {})
    assert transformer._weft_patterns.step == 0
    diffusers.clear_pattern(transformer)
    diffusers.clear_pattern(transformer)
    assert type(transformer.blocks[0].attn1.processor) is Processor and not transformer._forward_pre_hooks


@pytest.mark.more
@pytest.mark.parametrize("steps, graphs", [(None, 1), ("2:", 2), ([1, 5], 2)])
def test_steps_compile_nothing_new(steps, graphs):
    """A graph for each set of rules that hold, and not for each step."""
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    transformer, x = model()
    diffusers.set_pattern(transformer, neighborhood=3, steps=steps)
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(transformer, fullgraph=True, backend=counter)
    for step in range(12):
        diffusers.set_step(transformer, step)
        assert torch.allclose(compiled(x), transformer(x), atol=1e-5)
    assert counter.frame_count == graphs


def test_a_file(tmp_path):
    transformer, x = model()
    diffusers.set_pattern(transformer, neighborhood=3, layers=[0])
    diffusers.set_pattern(transformer, sliding_tile={"tile": (1, 2, 2), "window": (3, 1, 1)}, layers="1:")
    expected = transformer(x)
    for name, text in {
        "rules.toml": '[[pattern]]\nneighborhood = 3\nlayers = [0]\n[[pattern]]\nlayers = "1:"\n'
        "sliding_tile = {tile = [1, 2, 2], window = [3, 1, 1]}\n",
        "rules.json": '{"pattern": [{"neighborhood": 3, "layers": 0}, '
        '{"layers": "1:", "sliding_tile": {"tile": [1, 2, 2], "window": [3, 1, 1]}}]}',
    }.items():
        (tmp_path / name).write_text(text)
        diffusers.load_patterns(transformer, tmp_path / name)
        assert torch.equal(transformer(x), expected)
    for name, text, words in (
        ("rules.toml", b"[[pattern]]\nwindow = 3\n", "no window"),
        ("rules.toml", b"[pattern]\n", "[[pattern]]"),
        ("rules.toml", b"[[pattern]\n", "it is no TOML"),
        ("rules.toml", b"\xff\xfe", "it is no TOML"),
        ("rules.toml", b"[[pattern]]\nneighborhood = 3\n[[pattern]]\nlayers = 'two'\n", "two"),
        ("rules.json", b'{"pattern": [{]}', "it is no JSON"),
        ("rules.json", b'{"pattern": ' + b"[" * 5000, "it is no JSON"),
        ("rules.json", b'{"pattern": NaN}', "it is no JSON"),
        ("none.toml", None, "cannot be read"),
    ):
        if text is not None:
            (tmp_path / name).write_bytes(text)
        path = tmp_path / name
        refuse(lambda path=path: diffusers.load_patterns(transformer, path), OptionError, [words])
    refuse(lambda: diffusers.load_patterns(transformer, tmp_path), OptionError, ["a directory"])
    assert torch.equal(transformer(x), expected)  # as before


def test_a_picture():
    transformer, _ = model()
    diffusers.set_pattern(transformer, neighborhood=(1, 3, 3), layers=[1], steps="1:")
    text = diffusers.picture(transformer, (3, 4, 6), step=1)
    assert "layer 0: dense" in text and "layer 1: neighborhood" in text and "layer 2: dense" in text
    assert "12.5% of all pairs" in text
    rows = text.split("\n")
    start = next(i for i, row in enumerate(rows) if row.startswith("frame 0"))
    drawn = [row.ljust(26) for row in rows[start + 1 : start + 5]]
    assert [row[13:25].strip() for row in drawn] == ["", "██████", "██████", "██████"]
    assert not any(row[:13].strip() for row in drawn)
    assert diffusers.picture(transformer, (3, 4, 6)) == "layers 0 to 2: dense, every token sees every other one"
    refuse(lambda: diffusers.picture(model()[0], (3, 4, 6)), OptionError, ["set_pattern"])


def test_frames_that_are_shown_end_just_beyond_what_is_seen():
    transformer, _ = model()
    diffusers.set_pattern(transformer, neighborhood=(3, 3, 3), dilation=(2, 1, 1), layers=[0])
    text = diffusers.picture(transformer, (21, 4, 6))
    assert re.findall(r"frame (\d+)", text) == ["7", "8", "10", "12", "13"]


def test_a_figure(tmp_path):
    pytest.importorskip("matplotlib")
    transformer, _ = model()
    diffusers.set_pattern(transformer, neighborhood=(1, 3, 3), layers=[1])
    diffusers.picture(transformer, (3, 4, 6), path=tmp_path / "layers.svg")
    drawn = (tmp_path / "layers.svg").read_text()
    assert drawn.startswith("<?xml") and "<image" in drawn
    refuse(lambda: diffusers.picture(transformer, (3, 4, 6), path="layers.gif"), OptionError, [".svg"])


def test_a_mask_of_the_model_is_joined():
    transformer, x = model()
    mask = torch.ones(2, 1, 1, 72, dtype=torch.bool)
    mask[1, ..., 60:] = False
    expected = transformer(x, attention_mask=mask)
    diffusers.set_pattern(transformer, neighborhood=100)
    assert torch.allclose(transformer(x, attention_mask=mask), expected, atol=1e-5)
    refuse(lambda: transformer(x, attention_mask=mask.float()), UnsupportedError, ["booleans alone"])


def test_what_is_refused():
    transformer, _ = model()
    refuse(lambda: diffusers.set_pattern(torch.nn.Linear(1, 1), neighborhood=3), UnsupportedError, ["pipe.transformer"])
    with pytest.raises(TypeError, match="window"):
        diffusers.set_pattern(transformer, window=3)
    refuse(lambda: diffusers.set_step(transformer, 1), OptionError, ["set_pattern"])
    transformer.blocks[1].attn1.processor = Unknown()
    refuse(lambda: diffusers.set_pattern(transformer, neighborhood=3), UnsupportedError, ["Unknown"])
    assert type(transformer.blocks[0].attn1.processor) is Processor
    transformer = model()[0]
    diffusers.set_pattern(transformer, neighborhood=3)
    attention = transformer.blocks[0].attn1
    with pytest.raises(ValueError, match="call the whole transformer"):
        attention.processor(attention, torch.zeros(1, 7, 8))


def test_grids_follow_the_latents():
    transformer, x = model()
    diffusers.set_pattern(transformer, neighborhood=(1, 3, 3))
    for latents in (x, x[:, :, :, :6, :4], x[:1, :, :1]):
        transformer(latents)
        grid = latents.shape[2], latents.shape[3] // 2, latents.shape[4] // 2
        assert transformer._weft_patterns.grid == grid
