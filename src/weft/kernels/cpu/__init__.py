"""The CPU backend: blocks of queries over slices of keys, with the matrix products of the installed torch. No
compiler.
"""
