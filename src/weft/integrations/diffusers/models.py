"""Where the models of diffusers keep their attention over video tokens, and what grid these are.

Models are found by the names of their classes, so that diffusers is not imported here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from weft.errors import InputError, UnsupportedError

Grid = tuple[int, ...]  # frames, rows, columns of tokens


@dataclass(frozen=True)
class Model:
    """blocks: lists of blocks, in the order they run. attention: its name in a block. grid: of a forward's arguments.
    text: where text tokens stand beside the video's, "first", "last", or None where they have attention of their own.
    padded_at_end: whether the model's mask always leaves out the last tokens. reads_host: whether its processor reads
    numbers on the host, which no graph can.
    """

    blocks: tuple[str, ...]
    attention: str
    grid: Callable[[Any, Callable[[str, int], Any]], Grid]
    text: str | None = None
    padded_at_end: bool = False
    reads_host: bool = False

    def attentions(self, transformer: Any) -> Iterator[Any]:
        """The self-attention of each layer, in the order they run."""
        for name in self.blocks:
            for block in getattr(transformer, name):
                yield getattr(block, self.attention)


def _wan(config: Any, argument: Callable[[str, int], Any]) -> Grid:
    sizes = argument("hidden_states", 0).shape[2:]
    return tuple(n // p for n, p in zip(sizes, config.patch_size, strict=True))


def _hunyuan(config: Any, argument: Callable[[str, int], Any]) -> Grid:
    frames, height, width = argument("hidden_states", 0).shape[2:]
    return frames // config.patch_size_t, height // config.patch_size, width // config.patch_size


def _ltx(config: Any, argument: Callable[[str, int], Any]) -> Grid:
    grid = tuple(argument(name, place) for place, name in enumerate(("num_frames", "height", "width"), 4))
    if None in grid:
        raise InputError(
            "LTXVideoTransformer3DModel(...) under a pattern", "the grid of its tokens is not known",
            "pass num_frames, height and width of the latents to its forward",
        )  # fmt: skip
    return grid


def _cogvideox(config: Any, argument: Callable[[str, int], Any]) -> Grid:
    _, frames, _, height, width = argument("hidden_states", 0).shape
    return frames // (config.patch_size_t or 1), height // config.patch_size, width // config.patch_size


def _mochi(config: Any, argument: Callable[[str, int], Any]) -> Grid:
    frames, height, width = argument("hidden_states", 0).shape[2:]
    return frames, height // config.patch_size, width // config.patch_size


def _kandinsky(config: Any, argument: Callable[[str, int], Any]) -> Grid:
    sizes = argument("hidden_states", 0).shape[1:4]
    return tuple(n // p for n, p in zip(sizes, config.patch_size, strict=True))


MODELS = {
    "WanTransformer3DModel": Model(("blocks",), "attn1", _wan),
    "HunyuanVideoTransformer3DModel": Model(
        ("transformer_blocks", "single_transformer_blocks"), "attn", _hunyuan, "last", padded_at_end=True
    ),
    "LTXVideoTransformer3DModel": Model(("transformer_blocks",), "attn1", _ltx),
    "CogVideoXTransformer3DModel": Model(("transformer_blocks",), "attn1", _cogvideox, "first"),
    "Kandinsky5Transformer3DModel": Model(("visual_transformer_blocks",), "self_attention", _kandinsky),
    "MochiTransformer3DModel": Model(("transformer_blocks",), "attn1", _mochi, "last", reads_host=True),
}


def model_of(transformer: Any) -> Model:
    """What is known of a transformer, by its class or a base of it; UnsupportedError for any other."""
    for kind in type(transformer).__mro__:
        if kind.__name__ in MODELS:
            return MODELS[kind.__name__]
    raise UnsupportedError(
        f"set_pattern({type(transformer).__name__}, ...)", "how its tokens lie is not known",
        f"pass one of {', '.join(MODELS)}; of a pipeline its transformer: pipe.transformer",
    )  # fmt: skip
