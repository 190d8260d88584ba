"""Floor 1: what may be attended. Numpy only."""

from weft.pattern.algebra import Pattern

__all__ = ["Pattern"]
