"""The benchmark: its problems, its workers, its files and its pages."""
