"""The oracle of launch programs: kernels as numpy functions of their slots in float64, and programs that run on it.

    outputs = run_program(forward_program(plan, layout, Options(0.125)), {"q": q, "k": k, "v": v})

A function reads what its kernel reads: packed tables, scalars and slots by name, never the plan. It means what the
kernel means, without rounding, and checks laws that the kernel relies on: `BrokenLaw` says which one failed. Slow on
purpose: Python walks the programs of a grid one by one.
"""

from weft.kernels.gpu.oracle.laws import BrokenLaw
from weft.kernels.gpu.oracle.run import run_program

__all__ = ["BrokenLaw", "run_program"]
