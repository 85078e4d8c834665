"""Which checkpoints of a training run keep their weights, and why. Weights without a reason may be pruned."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from backend.domain.training.configuration import STEPPED, CheckpointChoice, Stage


class KeepReason(StrEnum):
    """Why the weights of a checkpoint are kept. Binding reasons prevent pruning by id; reasons of a rule do not."""

    words: str
    is_binding: bool

    def __new__(cls, value: str, words: str, is_binding: bool) -> "KeepReason":
        reason = str.__new__(cls, value)
        reason._value_, reason.words, reason.is_binding = value, words, is_binding
        return reason

    UNTRAINED = "untrained", "before training", False
    """The policy before training, with which results are compared."""
    WARM_UP = "warm_up", "after the warm-up", False
    """The result of SFT, from which GRPO starts."""
    BEST = "best", "best of its run", False
    """Highest held-out reward of its run."""
    LAST = "last", "one of the latest", False
    EVERY = "every", "every Nth step", False
    MARKED = "marked", "marked to be kept", True
    """A team member marked it."""
    EXPORTED = "exported", "exported", True
    EVALUATED = "evaluated", "evaluated", True
    STUDIED = "studied", "used by a study", True
    BRANCHED = "branched", "another run starts from it", True
    PLAYING = "playing", "in use right now", True
    """A running job uses it."""
    RESUME = "resume", "its run resumes from it", True


@dataclass(frozen=True, slots=True)
class KeepRule:
    """Which GRPO checkpoints of a run keep their weights. The best, untrained and warm-up checkpoints always do."""

    last: int = 5
    every: int = 0
    """In steps; 0: none."""

    @classmethod
    def of(cls, choice: CheckpointChoice) -> "KeepRule":
        return cls(choice.keep_last, choice.keep_every)

    @property
    def words(self) -> str:
        every = f" and every {self.every:,} steps" if self.every else ""
        return f"the best, the latest {self.last:,}{every}"


class SavedCheckpoint(Protocol):
    """The properties of a checkpoint that the rule reads."""

    stage: str
    step: int
    is_best: bool
    is_kept: bool
    pruned_at: datetime | None


def keep_reasons(of_run: Sequence[SavedCheckpoint], rule: KeepRule) -> list[list[KeepReason]]:
    """For each checkpoint of one run, the reasons within the run; empty if the rule does not keep it."""
    stored = sorted(saved.step for saved in of_run if saved.stage in STEPPED and saved.pruned_at is None)
    last = set(stored[-rule.last :]) if rule.last else set()
    all_reasons = []
    for saved in of_run:
        is_stepped = saved.stage not in {Stage.UNTRAINED, Stage.SFT}
        holds = {
            KeepReason.MARKED: saved.is_kept,
            KeepReason.BEST: saved.is_best,
            KeepReason.UNTRAINED: saved.stage == Stage.UNTRAINED,
            KeepReason.WARM_UP: saved.stage == Stage.SFT,
            KeepReason.LAST: is_stepped and saved.step in last,
            KeepReason.EVERY: is_stepped and rule.every > 0 and saved.step % rule.every == 0,
        }
        all_reasons.append([reason for reason, is_true in holds.items() if is_true])
    return all_reasons
