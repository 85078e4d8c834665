"""Benchmarks. `python -m benchmarks --list` shows them; `make bench` runs them all."""
