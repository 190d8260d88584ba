"""The store: what was expensive to make, kept on disk for other processes, and read only where others cannot write."""

from weft.store.entry import FACTS, SUMS, TIMINGS, Entry, damage
from weft.store.store import ABANDONED, Store, opened

__all__ = ["ABANDONED", "FACTS", "SUMS", "TIMINGS", "Entry", "Store", "damage", "opened"]
