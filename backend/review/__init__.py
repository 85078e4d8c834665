"""The review queue, verdicts and their consequences."""
