"""Kernels of patterns whose components fit into a tile: see `weft.planning.families.components`."""
