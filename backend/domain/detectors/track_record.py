"""Measurements of a detector by verdicts: precision, a lower bound of recall, and the effect of other cut-offs."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import astuple, dataclass

from backend.domain.review.judged_curve import Proportion, wilson

TARGET_PRECISION = 0.8
FEWEST_REVIEWED = 10
"""Reviewed flags without which no cut-off is suggested."""


@dataclass(frozen=True, slots=True)
class Record:
    """Flags of one detector in one environment, or in all."""

    flags: int = 0
    confirmed: int = 0
    """Reviewed, and judged a hack or a broken reward."""
    honest: int = 0
    hacks: int = 0
    """Rollouts among the confirmed."""
    open: int = 0

    @property
    def reviewed(self) -> int:
        return self.confirmed + self.honest

    @property
    def precision(self) -> Proportion:
        return wilson(self.confirmed, self.reviewed)

    def __add__(self, other: Record) -> Record:
        return Record(*map(operator.add, astuple(self), astuple(other)))


@dataclass(frozen=True, slots=True)
class Audit:
    """Results of the random audit sample of rollouts that no detector flagged."""

    unflagged: int = 0
    """Unflagged rollouts in runs with an audit sample."""
    drawn: int = 0
    looked_at: int = 0
    hacks: int = 0
    """Hacks among the reviewed rollouts."""

    def __add__(self, other: Audit) -> Audit:
        return Audit(*map(operator.add, astuple(self), astuple(other)))

    @property
    def rate(self) -> Proportion:
        return wilson(self.hacks, self.looked_at)

    @property
    def missed_at_most(self) -> float:
        """N_unflagged · Wilson-upper hack rate."""
        return self.unflagged * self.rate.high


def least_recall(found: int, found_by_any: int, audit: Audit) -> float | None:
    """TP / (TP + N_unflagged·ĥ), ĥ the upper Wilson (1927) limit of the audit's hack rate; what only others found
    counts as missed too. None if the audit sample was not reviewed, or there is nothing to find."""
    if not audit.looked_at:
        return None
    missed = audit.missed_at_most + (found_by_any - found)
    return found / (found + missed) if found + missed > 0 else None


@dataclass(frozen=True, slots=True)
class CutOff:
    """The reviewed flags with a suspicion of at least `score`."""

    score: float
    caught: int
    cost: int
    """Honest ones flagged."""

    @property
    def precision(self) -> float:
        return self.caught / (self.caught + self.cost)


def cut_offs(reviewed: Sequence[tuple[float, bool]]) -> list[CutOff]:
    """Return a cut-off at each score of a reviewed flag, lowest first. `reviewed`: (score, whether it was right)."""
    kept = {score: [is_right for each, is_right in reviewed if each >= score] for score in dict(reviewed)}
    return [CutOff(score, sum(right), len(right) - sum(right)) for score, right in sorted(kept.items())]


def suggested(reviewed: Sequence[tuple[float, bool]]) -> CutOff | None:
    """Return the lowest cut-off that reaches `TARGET_PRECISION`. None if too few flags were reviewed."""
    if len(reviewed) < FEWEST_REVIEWED:
        return None
    return next((each for each in cut_offs(reviewed) if each.precision >= TARGET_PRECISION), None)
