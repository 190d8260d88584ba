"""Video transformers of diffusers under weft's patterns: Wan, HunyuanVideo, LTX, CogVideoX, Mochi, Kandinsky 5.

`set_pattern(transformer, neighborhood=(9, 15, 25))` gives every block's self-attention a neighbourhood on the grid of
video tokens; text tokens see all and are seen by all. Weights and the rest of the model stay as they are.
"""

from weft.integrations.diffusers.patterns import clear_pattern, count_steps, load_patterns, set_pattern, set_step
from weft.integrations.diffusers.view import picture

__all__ = ["clear_pattern", "count_steps", "load_patterns", "picture", "set_pattern", "set_step"]
