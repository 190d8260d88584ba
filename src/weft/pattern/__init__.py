"""Which query may see which key: patterns as immutable expressions. numpy alone.

| modules | what they hold |
|---|---|
| `bounds` `relation` `counting` | staircases and step tables; conjunctions of them with residues; their pairs counted |
| `listed` `grouped` | sets of tokens given by a list; tokens with numbers as runs |
| `algebra` `leaves` | expressions and their operators; the leaves that carry meaning |
| `library` `composites` `pieces` `tables` `families` `padded` `excerpt` | one function for each pattern |
| `arguments` `integers` `extent` `depth` `misuse` | checks, and what is said of wrong calls |
| `crossing` | how a pattern enters a compiled graph |
| `parse` `draw` | patterns as text, read again; pictures of characters |
"""

from weft.pattern.algebra import Pattern

__all__ = ["Pattern"]
