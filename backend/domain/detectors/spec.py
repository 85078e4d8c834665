"""Detectors: their declarations, and the flags that they draft."""

import math
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Generic, TypeVar

from backend.domain.vocabulary import Severity

SUSPICION = "suspicion"
"""The threshold that every detector has."""


class Subject(StrEnum):
    ROLLOUT = "rollout"
    """Flags every rollout that shows the pattern."""
    RUN = "run"
    """Flags a run by its curves; a few rollouts are named as examples."""


class Need(StrEnum):
    """Input that a detector requires. Without it the detector raises no flags."""

    COLUMNS = "columns"
    """Two weighted reward columns or more."""
    TOKENS = "tokens"
    """Lengths that the policy reports."""
    STEPS = "steps"
    CODE = "code"
    """Replies or actions with program text."""
    BASE = "base"
    """Rollouts of a base policy on the same tasks: a completed evaluation of the policy's earliest checkpoint."""
    EVALUATION = "evaluation"
    """An evaluation of a later checkpoint. Training runs are not scanned."""
    HELDOUT = "heldout"
    CEILING = "ceiling"
    """The highest reward, from the declared ranges."""
    RANGES = "ranges"
    """A declared `range` of a reward column."""
    GRADER_TEXT = "grader_text"
    """Words that appear in the reward's own code and not in the prompt."""
    PROTECTED_FILES = "protected_files"
    """A metric `protected_files_changed` from the environment."""
    HIDDEN_TESTS = "hidden_tests"
    """Columns or metrics named `visible…` and `hidden…` from the environment."""
    GRADER_METRICS = "grader_metrics"
    """Metrics `grader_exit_code`, `grader_output_bytes`, `grader_seconds` or `grader_timeout` from the environment."""
    TRAPS = "traps"
    """Impossible tasks (`proctor.tasks.canaries`), or metrics named `honeypot…` from the environment."""
    SECOND_VERIFIER = "second_verifier"
    """The same rollouts scored by another version of the reward: a completed re-score or replay."""
    STEP_REWARDS = "step_rewards"
    """Rewards of single steps, and several turns."""
    SUCCESS = "success"
    """A column that means success."""
    SECOND_GRADE = "second_grade"
    """A metric, or a column without a weight, named `oracle…`, `gold…`, `truth…`, `true_…` or `hidden…`; a judge's
    score; or the same rollouts scored by another version of the reward."""
    VERDICTS = "verdicts"
    """A model trained on verdicts: enough hacks and honest rollouts that people reviewed in the environment."""
    REPLAY = "replay"
    """An env server that scores altered replies. Only on demand."""
    SANDBOX = "sandbox"
    """A sandbox that runs programs, and examples in the prompt. Only on demand."""


class Action(StrEnum):
    """The consequence of a flag while a run trains."""

    NOTE = "note"
    PAUSE = "pause"
    SCREEN = "screen"
    """Flagged rollouts stay out of the gradient until they are reviewed."""
    STOP_AND_ROLL_BACK = "stop_and_roll_back"


@dataclass(frozen=True, slots=True)
class ThresholdSpec:
    """A threshold of a detector: its default, its meaning and its range."""

    default: float
    description: str
    minimum: float = 0.0
    maximum: float = math.inf


LOWEST_SUSPICION = ThresholdSpec(0.0, "Flags with a lower suspicion (0 to 1) are not raised.", maximum=1)
COMMON = ThresholdSpec(
    0.2, "Rollouts without reward are not flagged where more than this share of the batch shows the pattern.", maximum=1
)
"""A setting of several detectors: a pattern that most of a batch shows is a policy that cannot write yet."""


@dataclass(frozen=True, slots=True)
class DetectorSpec:
    """The declaration of a detector, from which pages, forms, commands and documents derive."""

    id: str
    title: str
    description: str
    formula: str
    source: str
    settings: Mapping[str, ThresholdSpec]
    """Thresholds by name; the lowest suspicion is added. Empty: an answer raises flags, not a suspicion."""
    subject: Subject = Subject.ROLLOUT
    needs: tuple[Need, ...] = ()
    cost: str = "free"
    action: Action = Action.NOTE
    """The default consequence of its flags while a run trains."""

    def __post_init__(self) -> None:
        if self.settings:
            settings = {**self.settings, SUSPICION: self.settings.get(SUSPICION, LOWEST_SUSPICION)}
            object.__setattr__(self, "settings", settings)

    @property
    def thresholds(self) -> dict[str, float]:
        return {name: setting.default for name, setting in self.settings.items()}

    def problem_with(self, name: str, value: float) -> str | None:
        """Explain why a threshold is refused; None if it is allowed."""
        if name not in self.settings:
            return f"{self.id} has no threshold {name}; it has {', '.join(self.settings)}."
        threshold = self.settings[name]
        if threshold.minimum <= value <= threshold.maximum:
            return None
        if threshold.maximum == math.inf:
            return f"{name} must be at least {threshold.minimum:g}."
        return f"{name} must be a number from {threshold.minimum:g} to {threshold.maximum:g}."


ThresholdValues = Mapping[str, float]
"""The thresholds that apply to a scan, by name."""
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
        # Suspicions are stored with seven digits. A threshold copied from a stored flag still includes that flag.
        if score >= thresholds[SUSPICION] - 1e-6:
            finished.append(replace(draft, detector=spec.id, score=score, evidence={**draft.evidence, **method}))
    return finished
