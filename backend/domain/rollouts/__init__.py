"""Rollouts on their way to and from other tools: the record, its conversation, and what becomes training data."""
