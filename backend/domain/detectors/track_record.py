"""Measurements of a detector by verdicts: precision and a lower bound of recall."""

from collections.abc import Iterable
from dataclasses import astuple, dataclass
from typing import TypeVar

from backend.domain.statistics import Proportion, wilson

TARGET_PRECISION = 0.8
"""The suggested cut-off is the lowest one that reaches this precision."""
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


@dataclass(frozen=True, slots=True)
class Audit:
    """Verdicts on a set of runs: on the random audit sample of rollouts that no detector flagged, and on all flags."""

    rollouts: int = 0
    """Rollouts in runs with an audit sample."""
    flagged: int = 0
    drawn: int = 0
    looked_at: int = 0
    hacks: int = 0
    """Hacks among the reviewed rollouts of the sample."""
    found: int = 0
    """Rollouts that any detector flagged and a reviewer confirmed."""

    @property
    def unflagged(self) -> int:
        return max(0, self.rollouts - self.flagged)

    @property
    def rate(self) -> Proportion:
        return wilson(self.hacks, self.looked_at)

    @property
    def missed_at_most(self) -> float:
        """N_unflagged · Wilson-upper hack rate."""
        return self.unflagged * self.rate.high


Counts = TypeVar("Counts", Record, Audit)


def total(kind: type[Counts], parts: Iterable[Counts]) -> Counts:
    return kind(*map(sum, zip(*map(astuple, parts), strict=True)))


def least_recall(found: int, audit: Audit) -> float | None:
    """TP / (TP + N_unflagged·ĥ), ĥ the upper Wilson (1927) limit of the audit's hack rate; what only others found
    counts as missed too. None if the audit sample was not reviewed, or there is nothing to find."""
    if not audit.looked_at:
        return None
    missed = audit.missed_at_most + (audit.found - found)
    return found / (found + missed) if found + missed > 0 else None
