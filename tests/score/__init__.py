"""Score functions: their steps, derivatives, ranges, traces, and the law of dropout."""
