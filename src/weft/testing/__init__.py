"""For tests and benchmarks, beside the floors: nothing in weft but `weft.bench` imports it."""
