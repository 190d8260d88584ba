"""Floor 4: geometry to relayout to tiles to runs; what is visited, proven to be what the pattern says. Numpy only."""
