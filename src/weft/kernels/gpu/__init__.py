"""GPU kernels as launch programs, described before any framework is known."""
