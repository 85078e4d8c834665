"""Sums in one turn, and sums until they are right, with a tool that counts its calls."""

from v1_zoo.tasks import SumEnv, SumTaskset

__all__ = ["SumEnv", "SumTaskset"]
