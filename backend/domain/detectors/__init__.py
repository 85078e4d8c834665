"""Detectors of reward hacking: declarations, implementations, settings and their measured precision."""
