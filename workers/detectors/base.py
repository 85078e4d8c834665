"""The two kinds of detectors and what they draft. Their words and thresholds stand in `backend.domain.detectors`."""

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from backend.domain.detectors.catalogue import FACES
from backend.domain.detectors.spec import SUSPICION, Face
from backend.domain.vocabulary import Severity
from workers.detectors.environment_context import Scene
from workers.detectors.view import RolloutRow, RunView

Limits = Mapping[str, float]
"""A detector's thresholds in force."""
STORED_PRECISION = 1e-6
"""Suspicions are stored with seven digits; a threshold that is one of those tells that flag."""


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
    cluster: str | None = None
    """Rollouts that show the same pattern share it, so that people look at one of them first."""


@dataclass(frozen=True, slots=True)
class RunDetector:
    """Looks at the newest step of a run, with all that came before."""

    face: Face
    find: Callable[[RunView, Limits], list[FlagDraft]]

    @property
    def id(self) -> str:
        return self.face.id

    def look(self, view: RunView, limits: Limits) -> list[FlagDraft]:
        return [draft for draft in self.find(view, limits) if is_told(draft, limits)]


@dataclass(frozen=True, slots=True)
class RolloutDetector:
    """Looks at rollouts that were played beside each other, and drafts a flag for each that shows the pattern."""

    face: Face
    find: Callable[[Sequence[RolloutRow], Scene, Limits], list[FlagDraft]]

    @property
    def id(self) -> str:
        return self.face.id

    def look_at(self, rows: Sequence[RolloutRow], scene: Scene, limits: Limits) -> list[FlagDraft]:
        return [draft for draft in self.find(rows, scene, limits) if is_told(draft, limits)]


def is_told(draft: FlagDraft, limits: Limits) -> bool:
    """Is it suspicious enough to become a flag?"""
    return draft.score >= limits[SUSPICION] - STORED_PRECISION


def run_detector(id_: str, look: Callable[[RunView, Limits], list[FlagDraft]]) -> RunDetector:
    return RunDetector(FACES[id_], look)


def rollout_detector(
    id_: str, look_at: Callable[[Sequence[RolloutRow], Scene, Limits], list[FlagDraft]]
) -> RolloutDetector:
    return RolloutDetector(FACES[id_], look_at)


def bounded(score: float) -> float:
    return max(0.0, min(1.0, score))
