"""A plan as integers that kernels read.

| module | what it holds |
|---|---|
| `pack` `writer` | the records of one loop nest of a plan; integers appended, and where they begin |
| `batches` | waves: loop nests of a plan that one launch of a kernel computes |
| `consumer_ranges` `grid_ranges` | for warp groups: tiles of each consumer on a line, and on a grid |
| `block_lists` | for warp groups: lists of whole blocks |
| `tile_scheduler` | for warp groups: blocks of each program |
"""
