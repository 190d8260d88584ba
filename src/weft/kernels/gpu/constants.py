"""Numbers that kernels and their oracles share, as Python has them."""

LOG2E = 1.4426950408889634  # scores are multiplied by it, so that exp2 serves as exp
LN2 = 0.6931471805599453  # back to natural logarithms
# The score of a pair outside the mask, and what is below the score of every pair inside it. Between the two a score may
# be scaled, by 1e-10 or more (`KernelSpec.rescaled`). Infinity would not do: times 0 it is not a number.
PENALTY, NOTHING = -1e38, -1e25
LOW = -1e37  # times the scale: a lower lse is of a row of a grid that sees no key
# What a row's sum of exponentials may be without a maximum. Below, scores as far below the largest as they can matter
# would count as 0, and products with small values be none. Above, sums of large values would not be finite.
LEAST, MOST = 2.0**-48, 2.0**120
STATS = 16  # numbers of bfloat16 for each query: three of its lse, three of its delta; products take no fewer than 16
# Numbers of float32 for each query, where warp groups add to dQ. The first is added to scores in bits: minus lse, and
# the logarithm of the scale, which weights then have as a factor. The other is -delta.
PAIR = 2
