"""Detectors, the flags that they draft, and spans of text as evidence."""

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from backend.domain.detectors.spec import SUSPICION, DetectorSpec
from backend.domain.vocabulary import Severity

ThresholdValues = Mapping[str, float]
"""The thresholds that apply to a scan, by name."""
STORED_PRECISION = 1e-6
"""Suspicions are stored with seven digits. A threshold copied from a stored flag still includes that flag."""
MAX_SPANS = 20
"""Per rollout: more would only hide the text."""
SHOWN_STEPS = 60
"""Steps of a series that a flag keeps as evidence."""
SHOWN_ROLLOUTS = 5
"""Rollouts that a flag about a run names as examples."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Characters of a reply that show the pattern."""

    turn: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class FlagDraft:
    """A suspicion that is not stored yet."""

    detector: str
    """Empty until `finish_flags` has set it."""
    key: str
    """Identifies the suspicion: repeated scans give it the same key."""
    severity: Severity
    score: float
    """Suspicion in [0, 1]."""
    sentence: str
    """The observation, with numbers."""
    evidence: dict[str, Any] = field(default_factory=dict)
    """Windows, rollouts and spans of text."""
    rollout_id: uuid.UUID | None = None
    """None: the flag is about the run."""
    training_step: int | None = None
    cluster: str | None = None
    """Rollouts with the same pattern share a cluster, so that one of them is reviewed first."""


Flags = Iterator[FlagDraft]
Seen = TypeVar("Seen")


@dataclass(frozen=True, slots=True)
class Detector(Generic[Seen]):
    """Reads the newest step of a run with all steps before it (`RunView`), or the rollouts of one step (`Batch`)."""

    spec: DetectorSpec
    find: Callable[[Seen, ThresholdValues], Iterable[FlagDraft]]

    @property
    def id(self) -> str:
        return self.spec.id

    def detect(self, seen: Seen, thresholds: ThresholdValues) -> list[FlagDraft]:
        return finish_flags(self.spec, self.find(seen, thresholds), thresholds)


def finish_flags(spec: DetectorSpec, drafts: Iterable[FlagDraft], thresholds: ThresholdValues) -> list[FlagDraft]:
    """Drop flags below the lowest suspicion, and add how the others were found, as settings may change later."""
    method = {"title": spec.title, "formula": spec.formula, "source": spec.source, "thresholds": dict(thresholds)}
    finished = []
    for draft in drafts:
        score = max(0.0, min(1.0, draft.score))
        if score >= thresholds[SUSPICION] - STORED_PRECISION:
            finished.append(replace(draft, detector=spec.id, score=score, evidence={**draft.evidence, **method}))
    return finished
