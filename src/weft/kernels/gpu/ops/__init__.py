"""Jit fragments that families of kernels share. Pointwise ones compile inside Triton and inside Gluon.

| modules | fragments |
|---|---|
| `loads` `tiles` `vectors` | loads, stores and products; the columns of a tile; single rows |
| `mask` `bounds` | which pairs of a tile are dead; what a row sees |
| `scores` `pairs` `dropout` | the score of a pair; what score functions call; Philox |
| `rows` `scaling` | rows that move by lists of places; sums that are scaled and rounded |
| `softmax` `online_softmax` `epilogue` `sinks` | weights and sums; out and lse; sinks |
"""
