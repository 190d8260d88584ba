"""Gluon kernels of `specialised_warps.py`, whose warp groups specialise."""
