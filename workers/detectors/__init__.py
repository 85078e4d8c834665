"""Detectors: pure functions that look at a run, as far as it has come, and draft flags with evidence."""
