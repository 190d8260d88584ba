"""Kernels for Hopper whose warp groups specialise: a producer loads, consumers compute (docs/kernels-hopper.md)."""
