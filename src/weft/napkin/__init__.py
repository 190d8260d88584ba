"""Floor 3: diagrams of algorithms, relabelled into tiled ones, with what they transfer and hold. numpy and sympy only.

`diagram` says what is computed, `relabel` how it is partitioned, `cost` what that transfers and holds; only `cost` and
what stands on it import sympy. Facts: Abbott and Zardini 2025, arXiv 2412.03317.
"""
