"""Types of PTX as numpy's, and the floating-point formats that numpy lacks."""

import numpy as np

from .parse import Fault

LETTERS = {"b": "u", "u": "u", "s": "i", "f": "f"}
TYPES = {f"{a}{bits}": np.dtype(f"{b}{bits // 8}") for a, b in LETTERS.items() for bits in (16, 32, 64)}
TYPES |= {f"{a}8": np.dtype(f"{b}1") for a, b in LETTERS.items() if b != "f"}
TYPES |= {"pred": np.dtype(bool), "bf16": np.dtype("u2"), "bf16x2": np.dtype("u4"), "f16x2": np.dtype("u4")}
TF32 = np.uint32(0xFFFFE000)  # the bits of a float32 that a product in tf32 reads


def type_of(kind):
    """numpy's type of f32, s64, b16, pred and the like; bf16 as its bits."""
    if kind not in TYPES:
        raise Fault(f"the type {kind} is not known")
    return TYPES[kind]


def bits_of(kind):
    return 8 * type_of(kind).itemsize


def unsigned(x):
    """The bits of any array."""
    return x.view(f"u{x.itemsize}")


def narrowed(x, kind):
    """float32 -> the bits of bf16 or f16, to the nearest, ties to even; a NaN stays one."""
    if kind == "f16":
        return x.astype(np.float16).view(np.uint16)
    bits = x.view(np.uint32)
    rounded = bits >> np.uint32(16)
    rounded &= np.uint32(1)
    rounded += bits
    rounded += np.uint32(0x7FFF)
    rounded[np.isnan(x)] = np.uint32(0x7FFF0000)
    return (rounded >> np.uint32(16)).astype(np.uint16)


def widened(bits, kind):
    """The bits of bf16, f16 or tf32 -> float32; tf32 is cut off, as tensor cores do it."""
    if kind == "bf16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if kind == "f16":
        return bits.view(np.float16).astype(np.float32)
    if kind == "tf32":
        return (bits & TF32).view(np.float32)
    raise Fault(f"products of {kind} are not known")
