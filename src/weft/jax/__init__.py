"""weft for JAX: attention under weft's patterns, with jit, grad, vmap, scan and shard_map. Needs neither torch nor
Triton.
"""

from importlib.util import find_spec

if find_spec("jax") is None:
    raise ModuleNotFoundError("weft.jax needs JAX: pip install 'weft[jax]'", name="jax")

from weft.jax.attention import attention, plan
from weft.jax.dot_product import dot_product_attention
from weft.jax.mask import PlannedMask

__all__ = ["PlannedMask", "attention", "dot_product_attention", "plan"]
