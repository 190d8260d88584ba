"""Portable kernels in Triton: each program has a tile of rows and walks tiles of columns."""
