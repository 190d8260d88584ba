"""The main job, on real input: `python -m weft.demo` packs source text and takes a photograph. Then it plans, verifies,
runs, checks, times and draws attention under one pattern after another.
"""
