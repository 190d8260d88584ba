"""Triton's interpreter cuts float32 off to bfloat16; GPUs round it to the nearest, ties to even."""

from importlib import import_module

import numpy as np
import torch
import triton.language as tl


def as_gpus_do():
    """From now on the interpreter of this process rounds, too."""
    interpreter = import_module("triton.runtime.interpreter")
    cut_off = interpreter._convert_float

    def converted(x, given, wanted, rounding):
        if (given, wanted) != (tl.float32, tl.bfloat16):
            return cut_off(x, given, wanted, rounding)
        return torch.from_numpy(np.array(x)).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)

    interpreter._convert_float = converted
