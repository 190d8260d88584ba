"""Tests of recognition."""
