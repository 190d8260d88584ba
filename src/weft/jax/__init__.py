"""weft for JAX: attention under weft's patterns, with jit, grad, vmap, scan and shard_map.

No torch is needed; Triton is, for kernels on a GPU.
"""

from importlib.util import find_spec

from weft.errors import install_line

if find_spec("jax") is None:
    raise ModuleNotFoundError(f"weft.jax needs JAX: {install_line('jax')}", name="jax")

from weft.jax.attention import attention, plan
from weft.jax.distributed import distributed_attention
from weft.jax.dot_product import dot_product_attention
from weft.jax.mask import PlannedMask

__all__ = ["PlannedMask", "attention", "distributed_attention", "dot_product_attention", "plan"]
