"""weft inside other libraries, one module for each; none is imported unless it is asked for by its name."""
