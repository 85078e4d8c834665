"""What was done so that a run's reward means what it says; and how the team keeps up with review."""
