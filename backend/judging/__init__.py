"""Judging by people: the queue of flags, verdicts and their consequences."""
