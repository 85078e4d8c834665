"""Sweeps: searches over training settings, each of whose trials is an ordinary training run."""
