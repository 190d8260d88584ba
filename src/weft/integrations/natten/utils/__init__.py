"""NATTEN's helpers that its documentation names."""
