"""What attention is run on: source files of the standard library as bytes, and a photograph as a map of pixels."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

HEADS, D = 8, 64
FEATURES = 64  # of what a token is; as many again of where it is

Qkv = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


# ---- text --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class Pack:
    """Documents one after another: tokens (M,) bytes; name and number of bytes of each document."""

    tokens: np.ndarray
    names: tuple[str, ...]
    lengths: tuple[int, ...]


def pack_sources(total: int) -> Pack:
    """Exactly `total` bytes of the standard library's own modules, in the order of their names.

    Modules of at most a quarter of the pack are taken whole (a limit that doubles if they do not fill it). The last one
    is cut. Another version of Python gives other documents, the same one always gives the same.
    """
    files = sorted(path for path in Path(os.__file__).parent.glob("*.py") if path.stat().st_size)
    if sum(path.stat().st_size for path in files) < total:
        raise SystemExit(f"weft.demo: the standard library has less than {total} bytes of source files here")
    limit = total // 4
    while sum(size for path in files if (size := path.stat().st_size) <= limit) < total:
        limit *= 2
    return _filled((path for path in files if path.stat().st_size <= limit), total)


def _filled(files: Iterable[Path], total: int) -> Pack:
    names, parts, room = [], [], total
    for path in files:
        text = path.read_bytes()[:room]
        names.append(path.name)
        parts.append(text)
        room -= len(text)
        if not room:
            break
    return Pack(np.frombuffer(b"".join(parts), np.uint8), tuple(names), tuple(map(len, parts)))


def embed_text(tokens: np.ndarray) -> Qkv:
    """Bytes (M,) -> q, k, v (1, HEADS, M, D): a fixed random vector for each byte, and waves for its place."""
    table = np.random.default_rng(1).standard_normal((256, FEATURES))
    return _project(np.concatenate([table[tokens], waves(np.arange(tokens.size), FEATURES)], axis=1))


# ---- map ---------------------------------------------------------------------------------------------------------
def photograph(side: int) -> np.ndarray | None:
    """The picture of Grace Hopper that matplotlib ships, cut square: (side, side, 3) in 0..1; None if it is absent."""
    try:
        from matplotlib import cbook
        from PIL import Image

        with Image.open(cbook.get_sample_data("grace_hopper.jpg", asfileobj=False)) as picture:
            width = min(picture.size)
            square = picture.convert("RGB").crop((0, 0, width, width))
            return np.asarray(square.resize((side, side), Image.Resampling.BOX), np.float32) / 255
    except (ImportError, OSError):
        return None


def drawn_map(side: int) -> np.ndarray:
    """Rings of colour (side, side, 3), for want of a photograph."""
    y, x = np.mgrid[0:side, 0:side] / side
    return np.stack([np.sin(20 * np.hypot(x - a, y - b)) / 2 + 0.5 for a, b in ((0, 0), (1, 0), (0.5, 1))], axis=-1)


def embed_map(colours: np.ndarray) -> Qkv:
    """Colours (height, width, 3) -> q, k, v (1, HEADS, height * width, D) from colour, row and column of each pixel."""
    height, width = colours.shape[:2]
    lift = np.random.default_rng(2).standard_normal((3, FEATURES))
    rows, columns = np.divmod(np.arange(height * width), width)
    place = np.concatenate([waves(rows, FEATURES // 2), waves(columns, FEATURES // 2)], axis=1)
    return _project(np.concatenate([2 * (colours.reshape(-1, 3) - 0.5) @ lift, place], axis=1))


# ---- both --------------------------------------------------------------------------------------------------------
def waves(positions: np.ndarray, width: int) -> np.ndarray:
    """Sines and cosines of positions at wavelengths from 6 to 10000: (positions, width)."""
    rates = 10000.0 ** -np.linspace(0, 0.8, width // 2)
    angles = positions[:, None] * rates[None, :]
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


def _project(features: np.ndarray) -> Qkv:
    """Features (M, F) -> q, k, v (1, HEADS, M, D) in float32, by three fixed random projections."""
    weights = np.random.default_rng(3).standard_normal((3, features.shape[1], HEADS * D)) / features.shape[1] ** 0.5
    split = (features @ weights).reshape(3, -1, HEADS, D).transpose(0, 2, 1, 3).astype(np.float32)
    q, k, v = (torch.from_numpy(np.ascontiguousarray(x))[None] for x in split)
    return q, k, v
