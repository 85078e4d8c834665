"""Effort scores: how much of its reasoning a checkpoint needs for its reward, against the policy it began as."""
