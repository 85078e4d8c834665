"""Sums, asked once; sums, asked until they are right, with a tool that counts what was spent."""

from v1_zoo.tasks import SumEnv, SumTaskset

__all__ = ["SumEnv", "SumTaskset"]
