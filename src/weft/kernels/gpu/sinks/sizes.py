"""How the kernels of sinks deal out rows to programs."""

TILE = 4096  # rows of a program of the gradient, 16 of each thread
ALONE = 4  # tiles of a head that one program takes, so that nothing is left to add
PROGRAMS = 512  # of longer heads, which fill any card
JOINED = 8  # rows that one program joins with their sinks; with more, addresses of wide rows spill
