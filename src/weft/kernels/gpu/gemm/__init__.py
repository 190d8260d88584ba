"""Products with what follows them in one kernel: bias, activation, gate, residual, the scale of a norm, RoPE.

`meaning` says in float64 what each computes; `config` names tilings; the other modules are functions of Triton.
"""
