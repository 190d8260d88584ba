"""Writes `formulas.py`, the standard formulas as plain Python: `python -m weft.napkin.generate > formulas.py`."""

from __future__ import annotations

from typing import Any

from weft.napkin.builders import AttentionAxes, attention, matmul
from weft.napkin.cost import memory, optimum, transfers
from weft.napkin.diagram import Axis, Dtype
from weft.napkin.emit import NAMES, source
from weft.napkin.relabel import Derivation, flash_attention

HEAD = '''"""Standard formulas, in bytes, without sympy. Written by `weft.napkin.generate`; do not edit.

nbytes: of one element; g_ and s_: groups and chunks of an axis; M: bytes of the level. x: keys, or the mean span of a
group where attention reads an affine sparse axis (`weft.napkin.span`).
"""

'''


def standard() -> dict[str, tuple[Any, str]]:
    """name -> (formula, what it says)."""
    open_dtype = Dtype("open", "nbytes")
    product = Derivation(matmul(Axis("a"), Axis("b"), Axis("c"), open_dtype))
    product = product.group("a", "shared").group("c", "shared").stream("b", "shared")
    flash = flash_attention(attention(dtype=open_dtype))
    square = flash_attention(attention(AttentionAxes(v=Axis("d")), open_dtype))
    naive = Derivation(attention(dtype=open_dtype))
    return {
        "matmul_transfers": (transfers(product, "shared"), "H of a product (a, b) by (b, c)."),
        "matmul_memory": (memory(product, "shared"), "M of one of its groups."),
        "matmul_optimum": (optimum(product, "shared").transfers, "The least H of it."),
        "naive_attention_transfers": (transfers(naive, "shared"), "H of attention, operation by operation."),
        "attention_transfers": (transfers(flash, "shared"), "H of one head, queries grouped and keys streamed."),
        "attention_memory": (memory(flash, "shared"), "M of one of its groups."),
        "attention_optimum": (optimum(square, "shared").transfers, "The least H of it where V is as wide as K."),
    }


def text() -> str:
    """The module."""
    parts = []
    for name, (formula, says) in standard().items():
        arguments = sorted(str(symbol) for symbol in formula.free_symbols)
        parts.append(source(name, formula, arguments, says, typed=True))
    return "\n\n".join([HEAD + "from __future__ import annotations\n\n" + NAMES, *parts])


if __name__ == "__main__":
    print(text(), end="")
