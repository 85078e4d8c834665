"""The words of detectors, and the face that all of them have."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

SUSPICION = "suspicion"
"""Threshold of every detector: the least suspicion that is told as a flag."""
LEAST_SUSPICION = 0.0
"""The default: all of it."""


class Subject(StrEnum):
    ROLLOUT = "rollout"
    """Flags every rollout that shows the pattern."""
    RUN = "run"
    """Flags a run by its curves; a few rollouts are named as examples."""


class Need(StrEnum):
    """What a detector cannot do without. Where it is missing, the detector is silent."""

    COLUMNS = "columns"
    """Two weighted reward columns or more."""
    TOKENS = "tokens"
    """Lengths that the policy reports."""
    STEPS = "steps"
    """The steps of a training run."""
    CODE = "code"
    """Replies or actions with program text."""
    BASE = "base"
    """Rollouts of a base policy on the same tasks: a completed evaluation of the policy's earliest checkpoint."""
    EVALUATION = "evaluation"
    """An evaluation of a later checkpoint. A training run is not looked at."""
    HELDOUT = "heldout"
    """Examinations on held-out tasks."""
    CEILING = "ceiling"
    """The highest reward, from the declared ranges."""
    RANGES = "ranges"
    """A declared `range` of a reward column."""
    GRADER_TEXT = "grader_text"
    """Words that stand in the reward's own code and not in the prompt."""
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
    REPLAY = "replay"
    """An env server that scores altered replies: only on demand."""


class Action(StrEnum):
    """What follows while a run trains."""

    NOTE = "note"
    PAUSE = "pause"
    SCREEN = "screen"
    """Flagged rollouts stay out of the gradient until they are judged."""
    STOP_AND_ROLL_BACK = "stop_and_roll_back"


@dataclass(frozen=True, slots=True)
class Face:
    id: str
    title: str
    sentence: str
    """What it looks for, in plain words."""
    formula: str
    source: str
    subject: Subject
    thresholds: Mapping[str, float]
    """The defaults."""
    needs: tuple[Need, ...] = ()
    cost: str = "free"
    action: Action = Action.NOTE
    meaning: Mapping[str, str] = field(default_factory=dict)
    """What a threshold says, where its name does not."""
