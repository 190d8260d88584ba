"""Neighbourhood attention at work: every pixel of a picture becomes the mean of its surroundings, weighted by likeness.

With the colours of the 3 x 3 pixels around a pixel as queries and keys, exp(q . k) with the right norms is a Gaussian
of the distance between two such patches. That is the non-local means filter of Buades, Coll and Morel (2005): noise
goes, edges stay, because across an edge nothing looks alike.
"""

from __future__ import annotations

import numpy as np
import torch

import weft

SIZE = 13  # pixels: six either way and the pixel itself


def smoothed(image: np.ndarray, sigma: float) -> np.ndarray:
    """(height, width, 3) -> the same. sigma: the noise in a colour, up to which two patches count as alike."""
    height, width = image.shape[:2]
    around = np.pad(image, ((1, 1), (1, 1), (0, 0)), mode="reflect")
    patches = np.stack([around[i : i + height, j : j + width] for i in range(3) for j in range(3)], axis=2)
    # -|a - b|^2 / 2 = a . b - |b|^2 / 2 - |a|^2 / 2. The last part is the same for all keys of a row and falls out of
    # the softmax. The one before is a feature of the key that every query meets with weight 1.
    x = patches.reshape(height * width, -1) / (sigma * 27**0.5)
    x -= x.mean(axis=0)
    q = np.concatenate([x, np.ones_like(x[:, :1])], axis=1)
    k = np.concatenate([x, -(x * x).sum(axis=1, keepdims=True) / 2], axis=1)
    q, k, v = (torch.from_numpy(np.ascontiguousarray(a, np.float32))[None, None] for a in (q, k, image.reshape(-1, 3)))
    out = weft.attention(q, k, v, weft.neighborhood((height, width), SIZE), scale=1.0)
    return out[0, 0].numpy().reshape(image.shape)


def noisy(image: np.ndarray, sigma: float) -> np.ndarray:
    """The image with Gaussian noise, the same at every call."""
    noise = np.random.default_rng(5).standard_normal(image.shape)
    return np.clip(image + sigma * noise, 0, 1).astype(np.float32)


def likeness(image: np.ndarray, truth: np.ndarray) -> float:
    """Peak signal to noise in dB, for values in 0..1."""
    return float(-10 * np.log10(np.mean((image - truth) ** 2)))
