"""Weft's GPU kernels from JAX: launch programs as custom calls that jaxlib itself executes."""
