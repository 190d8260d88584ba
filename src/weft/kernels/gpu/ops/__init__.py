"""Functions that kernels of several families call."""
