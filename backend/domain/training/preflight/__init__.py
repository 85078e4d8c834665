"""Findings about a training run before it is queued: some from its configuration alone, others measured by a worker."""
