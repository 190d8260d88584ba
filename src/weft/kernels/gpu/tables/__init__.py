"""A plan as integers that kernels read.

| module | what it holds |
|---|---|
| `pack` `writer` | the records of one launch of a plan; integers appended, and where they begin |
| `batches` | waves: launches of a plan that one launch of a kernel computes |
| `boxes` | boxes of a grid, moved to where all their tokens exist |
| `consumer_ranges` `tile_scheduler` | for warp groups: tiles of each consumer; blocks of each program |
"""
