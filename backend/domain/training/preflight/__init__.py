"""What can be said of a training run before it is queued: at once from its choices, and after a look by a worker."""
