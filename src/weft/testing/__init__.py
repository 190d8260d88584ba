"""For tests and benchmarks, beside the floors: nothing in weft imports it."""
