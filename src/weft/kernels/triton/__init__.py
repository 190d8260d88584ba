"""The Triton backend: kernels emitted from named fragments, one family for every plan and every card."""
