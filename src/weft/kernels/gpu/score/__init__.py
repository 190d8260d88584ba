"""Score functions inside kernels: what kernels are told of them, and their text."""
