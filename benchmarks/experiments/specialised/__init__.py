"""Gluon kernels of `specialised_warps.py` and `short_windows.py`, whose warp groups specialise."""
