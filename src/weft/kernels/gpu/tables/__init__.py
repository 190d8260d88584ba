"""A plan as integers that kernels read.

| module | what it holds |
|---|---|
| `pack` `writer` | the records of one loop nest of a plan; integers appended, and where they begin |
| `batches` | waves: loop nests of a plan that one launch of a kernel computes |
| `boxes` | boxes of a grid, moved to where all their tokens exist |
| `consumer_ranges` `tile_scheduler` | for warp groups: tiles of each consumer; blocks of each program |
"""
