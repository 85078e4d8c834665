"""Kinds of items that can be deleted, and text for the contents of a deletion."""

from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum

KEEP_DELETED = timedelta(days=30)
"""For this long, a deletion can be undone."""
ORDER = ("versions", "runs", "rollouts", "verdicts", "policies", "checkpoints", "exports", "replies", "budgets")
"""Contents in the order in which people read them."""


class DeletedKind(StrEnum):
    RUN = "run"
    ENVIRONMENT = "environment"
    POLICY = "policy"
    CHECKPOINT = "checkpoint"
    STUDY = "study"
    GRADER = "grader"


def counted(number: int, plural: str) -> str:
    """Return "1 policy" or "1,200 rollouts"."""
    singular = plural.removesuffix("ies") + "y" if plural.endswith("ies") else plural.removesuffix("s")
    return f"{number:,} {plural if number != 1 else singular}"


def in_words(contents: Mapping[str, int]) -> str:
    """Return "142 rollouts, 3 checkpoints and 1 export", without zeros and in a fixed order."""
    rank = {plural: place for place, plural in enumerate(ORDER)}
    ordered = sorted(contents.items(), key=lambda item: rank.get(item[0], len(rank)))
    parts = [counted(number, plural) for plural, number in ordered if number]
    return " and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:])))
