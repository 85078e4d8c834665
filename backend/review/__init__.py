"""The review: one queue of what is flagged and of the blind sample, one screen for a verdict on each."""
