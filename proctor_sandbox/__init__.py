"""Run code that nobody trusts: `execute()`."""
