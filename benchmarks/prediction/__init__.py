"""Predicted against measured: what the cost model says of kernels, beside what they take."""
