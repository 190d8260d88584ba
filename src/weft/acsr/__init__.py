"""Floor 2: the affine-compressed-sparse-row format. Numpy only."""

from weft.acsr.format import Acsr, Grid, Remainder, Term

__all__ = ["Acsr", "Grid", "Remainder", "Term"]
