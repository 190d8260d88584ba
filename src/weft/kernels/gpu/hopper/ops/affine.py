"""Bounds of rows by clipped lines: which positions of a run a row sees (`weft.kernels.gpu.ops.bounds`)."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from weft.kernels.gpu.hopper.ops.aggregate import aggregate
from weft.kernels.gpu.ops.bounds import positions
from weft.kernels.gpu.tables import pack

# Of a part's integers those that bounds take: step, length, the step's reciprocal, and two clipped lines.
LINES = pack.PART + pack.AXIS
NUMBERS = gl.constexpr((*(pack.PART + n for n in (0, 2, 4, 5)), *(LINES + n for n in (0, 3, 4, 5, 16, 19, 20, 21))))


@aggregate
class AffineBounds:
    """Two clipped lines, min(max(i * rise + base, least), most), and the axis whose positions they bound."""

    step: gl.tensor
    length: gl.tensor
    inverse: gl.tensor
    digits: gl.tensor
    rise: gl.tensor
    base: gl.tensor
    least: gl.tensor
    most: gl.tensor
    rise_to: gl.tensor
    base_to: gl.tensor
    least_to: gl.tensor
    most_to: gl.tensor

    @gluon.jit
    def positions(self, i, first, count):
        """The first position of a run that rows i see, and the one after the last. The run: `count` from `first`."""
        low = gl.maximum(gl.minimum(gl.maximum(i * self.rise + self.base, self.least), self.most), 0)
        high = gl.minimum(
            gl.minimum(gl.maximum(i * self.rise_to + self.base_to, self.least_to), self.most_to), self.length
        )
        low = positions(low, first, self.step, self.inverse, self.digits)
        return low, gl.minimum(positions(high, first, self.step, self.inverse, self.digits), count)


@gluon.jit
def affine_bounds(part):
    """Those of a term. part: a pointer to its integers."""
    return AffineBounds(
        gl.load(part + NUMBERS[0]), gl.load(part + NUMBERS[1]), gl.load(part + NUMBERS[2]), gl.load(part + NUMBERS[3]),
        gl.load(part + NUMBERS[4]), gl.load(part + NUMBERS[5]), gl.load(part + NUMBERS[6]), gl.load(part + NUMBERS[7]),
        gl.load(part + NUMBERS[8]), gl.load(part + NUMBERS[9]), gl.load(part + NUMBERS[10]),
        gl.load(part + NUMBERS[11]),
    )  # fmt: skip
