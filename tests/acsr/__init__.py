"""Bounds, relations and the ACSR format."""
