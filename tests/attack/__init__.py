"""The drawn attack: stores, rows and files that somebody damaged or planted, and processes that were killed.

A case never ends raw, and never changes in silence what runs: either all is as it was, or it is said.
"""
