"""The search of a sweep: which values to try next, which runs to stop early, which settings mattered."""
