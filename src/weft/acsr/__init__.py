"""The affine-compressed-sparse-row format: the rows of a pattern as disjoint terms. numpy alone.

| modules | what they hold |
|---|---|
| `format` `interpret` `proof` | the format; what attention over it means; that it says what its pattern says |
| `build` `lower` `terms` `merge` `bands` `sides` `cover` | pattern -> Acsr; the algebra of terms; fewer terms |
| `blocks` `bits` | pairs without affine form, one bit each |
| `relayout` `ordered` `labels` `stairs` | lanes; tokens in another order; labels of cells; staircases |
| `packed` `placed` `steady` | documents of unlike lengths; a pattern at some tokens; patterns that only grow |
| `excerpts` `tokens` `needs` | terms between two boxes; sets of tokens as runs; the keys that some rows see |
| `cells` `picture` `work` | live pairs of a picture's cells; which term owns one; pairs that a kernel computes |
"""

from weft.acsr.format import Acsr, Grid, Remainder, Term

__all__ = ["Acsr", "Grid", "Remainder", "Term"]
