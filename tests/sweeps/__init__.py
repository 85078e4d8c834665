"""Sweeps: the search, what is refused, the trials of a sweep, its pages and commands."""
