"""The face that all detectors have."""

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from backend.domain.vocabulary import Severity
from workers.judging.detectors.view import RunView


@dataclass(frozen=True, slots=True)
class FlagDraft:
    """A suspicion, not stored yet."""

    detector: str
    key: str
    """What it is about: the same suspicion has the same key, however often a detector looks."""
    severity: Severity
    score: float
    """Suspicion in [0, 1]."""
    sentence: str
    """What was seen, with numbers."""
    evidence: dict[str, Any] = field(default_factory=dict)
    """Windows, rollouts and spans of text."""
    rollout_id: uuid.UUID | None = None
    """None: it is about the run."""
    training_step: int | None = None


@dataclass(frozen=True, slots=True)
class Detector:
    """One way to become suspicious."""

    id: str
    title: str
    sentence: str
    """What it looks for, in plain words."""
    formula: str
    source: str
    thresholds: Mapping[str, float]
    look: Callable[[RunView], list[FlagDraft]]
    """Looks at the newest step of a run, with all that came before."""


def bounded(score: float) -> float:
    return max(0.0, min(1.0, score))
