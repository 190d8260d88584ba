"""What `benchmarks/scale_out.py` measures: layers, ways to compute them over ranks, models, and how they are timed."""
