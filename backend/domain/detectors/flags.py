"""The two kinds of detectors, the flags that they draft, and spans of text as evidence."""

import hashlib
import statistics
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from backend.domain.detectors.run_view import EnvironmentContext, HeldoutResult, RolloutRow, RunView, StepFigures
from backend.domain.detectors.spec import SUSPICION, DetectorSpec
from backend.domain.vocabulary import Severity

ThresholdValues = Mapping[str, float]
"""The thresholds that apply to a scan, by name."""
STORED_PRECISION = 1e-6
"""Suspicions are stored with seven digits. A threshold copied from a stored flag still includes that flag."""
EXCERPT = 80
MAX_SPANS = 20
"""Per rollout: more would only hide the text."""
SHOWN_STEPS = 60
"""Steps of a series that a flag keeps as evidence."""
SHOWN_ROLLOUTS = 5
"""Rollouts that a flag about a run names as examples."""


@dataclass(frozen=True, slots=True)
class FlagDraft:
    """A suspicion that is not stored yet."""

    detector: str
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


@dataclass(frozen=True, slots=True)
class RunDetector:
    """Reads the newest step of a run together with all steps before it."""

    spec: DetectorSpec
    find: Callable[[RunView, ThresholdValues], Iterable[FlagDraft]]

    @property
    def id(self) -> str:
        return self.spec.id

    def detect(self, view: RunView, thresholds: ThresholdValues) -> list[FlagDraft]:
        return [draft for draft in self.find(view, thresholds) if exceeds_threshold(draft, thresholds)]


@dataclass(frozen=True, slots=True)
class RolloutDetector:
    """Reads rollouts of one step or batch, and drafts a flag for each that shows the pattern."""

    spec: DetectorSpec
    find: Callable[[Sequence[RolloutRow], EnvironmentContext, ThresholdValues], Iterable[FlagDraft]]

    @property
    def id(self) -> str:
        return self.spec.id

    def detect(
        self, rows: Sequence[RolloutRow], context: EnvironmentContext, thresholds: ThresholdValues
    ) -> list[FlagDraft]:
        return [draft for draft in self.find(rows, context, thresholds) if exceeds_threshold(draft, thresholds)]


def exceeds_threshold(draft: FlagDraft, thresholds: ThresholdValues) -> bool:
    return draft.score >= thresholds[SUSPICION] - STORED_PRECISION


@dataclass(frozen=True, slots=True)
class Mark:
    """Characters of a reply that show the pattern."""

    turn: int
    start: int
    end: int


def flag_rollout(
    spec: DetectorSpec,
    row: RolloutRow,
    *,
    score: float,
    sentence: str,
    marks: Sequence[Mark] = (),
    cluster: str = "",
    severity: Severity = Severity.WARNING,
    **facts: object,
) -> FlagDraft:
    """Draft a flag about a rollout, with the marked text and further facts as evidence."""
    evidence: dict[str, Any] = {"rollouts": [str(row.id)], "reward": row.reward, **facts}
    if marks:
        first = marks[0]
        spans = [{"turn": mark.turn, "start": mark.start, "end": mark.end} for mark in marks[:MAX_SPANS]]
        evidence |= {"spans": spans, "excerpt": row.replies[first.turn][first.start : first.end][:EXCERPT]}
    return FlagDraft(
        detector=spec.id,
        key=str(row.id),
        severity=severity,
        score=bounded(score),
        sentence=sentence,
        evidence=evidence,
        rollout_id=row.id,
        cluster=cluster[:200] or None,
    )


def flag_run(
    spec: DetectorSpec,
    view: RunView,
    *,
    score: float,
    sentence: str,
    key: str = "run",
    severity: Severity = Severity.WARNING,
    window: Sequence[StepFigures | HeldoutResult] = (),
    series: Mapping[str, Sequence[float | None]] | None = None,
    rows: Iterable[RolloutRow],
    **facts: object,
) -> FlagDraft:
    """Draft a flag about the newest step of a run, with example rollouts, series by step and further facts."""
    evidence: dict[str, Any] = {"rollouts": [str(row.id) for row in islice(rows, SHOWN_ROLLOUTS)], **facts}
    if window:
        evidence["window"] = [window[0].step, window[-1].step]
    if series:
        evidence["series"] = {name: values[-SHOWN_STEPS:] for name, values in series.items()}
    return FlagDraft(
        detector=spec.id,
        key=key,
        severity=severity,
        score=bounded(score),
        sentence=sentence,
        evidence=evidence,
        training_step=view.steps[-1].step,
    )


def bounded(score: float) -> float:
    """The score limited to [0, 1]."""
    return max(0.0, min(1.0, score))


def whole_reply(row: RolloutRow, turn: int) -> list[Mark]:
    return [Mark(turn, 0, len(row.replies[turn]))] if row.replies else []


def earning_ids(rows: Sequence[RolloutRow], context: EnvironmentContext) -> set[str]:
    """Return the ids of rollouts that earn at least the mean, and more than the lowest possible reward."""
    mean = statistics.fmean(row.reward for row in rows)
    lowest = context.lowest
    return {str(row.id) for row in rows if row.reward >= mean and (lowest is None or row.reward > lowest)}


def drop_common(
    found: Sequence[RolloutRow], rows: Sequence[RolloutRow], earning: set[str], common: float
) -> Sequence[RolloutRow]:
    """Drop unrewarded rollouts if more than the `common` share of the batch shows the pattern."""
    if len(found) <= max(1.0, common * len(rows)):
        return found
    return [row for row in found if str(row.id) in earning]


def fingerprint(*texts: str) -> str:
    """A hash that is equal for texts that differ only in case and whitespace."""
    normalized = "\n".join(" ".join(text.lower().split()) for text in texts)
    return hashlib.sha256(normalized.encode("utf-8", "replace")).hexdigest()[:16]
