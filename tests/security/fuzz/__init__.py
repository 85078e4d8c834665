"""Fuzzing of everything that parses bytes of others: `python -m tests.security.fuzz --seconds 10`."""
