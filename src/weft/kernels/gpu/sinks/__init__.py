"""Sinks beside attention's own kernels: they join finished rows, and their gradient is summed over rows."""
