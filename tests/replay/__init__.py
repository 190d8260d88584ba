"""The replay gate: it says whether a rewrite changed what the card runs. README.md beside this file explains it."""
