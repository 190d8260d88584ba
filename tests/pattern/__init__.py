"""Tests of the pattern library; a package so that its modules can share `oracles` by a relative import."""
