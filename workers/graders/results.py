"""The results of graders, before they are stored."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from backend.domain.graders.canaries import CanaryReport
from backend.domain.graders.evidence import FoundQuote
from backend.domain.graders.replies import Pattern
from workers.graders.requests import Exchange, Usage

CONFIRMATIONS = 3
"""Repeats of each canary once a grader looks injectable."""
MAX_RAW = 20_000
"""Characters of an unreadable reply that are stored."""


@dataclass(slots=True)
class GradeResult(Usage):
    """The grade of one rollout. Without a score it failed, and `error` says why."""

    score: float | None = None
    spread: float | None = None
    verdicts: list[dict[str, Any]] = field(default_factory=list)
    answer: str | None = None
    confidence: float | None = None
    reason: str = ""
    citations: list[FoundQuote] = field(default_factory=list)
    dropped: int = 0
    """Quotes that were not found."""
    error: str = ""
    is_unreachable: bool = False
    """The model did not reply at all."""
    seconds: float = 0.0
    exchanges: list[Exchange[Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PatternEvidence:
    """A rollout that shows a pattern, with its quotes."""

    position: int
    """Among the members of the contrast."""
    quotes: list[FoundQuote]


@dataclass(slots=True)
class ContrastResult(Usage):
    """The result of comparing several rollouts."""

    patterns: list[tuple[Pattern, list[PatternEvidence]]] = field(default_factory=list)
    dropped: int = 0
    """Quotes that were not found, or that are from a low-reward rollout."""
    error: str = ""
    is_unreachable: bool = False
    seconds: float = 0.0
    exchanges: list[Exchange[Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class CanaryOutcome:
    report: CanaryReport
    usage: Sequence[Usage]
    problem: str = ""
    """Why the model cannot be reached."""


def stored_quotes(quotes: Sequence[FoundQuote]) -> list[dict[str, Any]]:
    """Quotes as JSON columns store them."""
    return [asdict(each) | {"part": str(each.part)} for each in quotes]
