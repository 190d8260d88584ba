"""A plan as integers that kernels read: records, launch batches, the ranges of consumers, the tile scheduler."""
