"""Preflight of a training run before it is queued: load the model, play and train a little, store only findings."""
