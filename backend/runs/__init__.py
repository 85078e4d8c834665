"""Runs of every kind: start, list, watch, stop and resume them."""
