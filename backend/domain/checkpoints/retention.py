"""Which checkpoints of a training run keep their weights, and why. Weights without a reason may be pruned."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from backend.domain.training.configuration import CheckpointChoice, Stage


class KeepReason(StrEnum):
    """Why the weights of a checkpoint are kept."""

    UNTRAINED = "untrained"
    """The policy before training, with which results are compared."""
    WARM_UP = "warm_up"
    """The result of SFT, from which GRPO starts."""
    BEST = "best"
    """Highest held-out reward of its run."""
    LAST = "last"
    """One of the latest checkpoints."""
    EVERY = "every"
    """A checkpoint of every Nth step."""
    MARKED = "marked"
    """A team member marked it."""
    EXPORTED = "exported"
    """It was exported."""
    EVALUATED = "evaluated"
    """An evaluation used it."""
    STUDIED = "studied"
    """A study uses it."""
    BRANCHED = "branched"
    """Another training run started from it."""
    PLAYING = "playing"
    """A running job uses it."""
    RESUME = "resume"
    """Its run is not finished and resumes from it."""

    @property
    def is_binding(self) -> bool:
        """Whether it prevents pruning by id. Weights kept only by a rule can be pruned by id."""
        return self in _BINDING

    @property
    def words(self) -> str:
        return _WORDS[self]


_BINDING = frozenset(
    {
        KeepReason.MARKED,
        KeepReason.EXPORTED,
        KeepReason.EVALUATED,
        KeepReason.STUDIED,
        KeepReason.BRANCHED,
        KeepReason.PLAYING,
        KeepReason.RESUME,
    }
)
_WORDS = {
    KeepReason.UNTRAINED: "before training",
    KeepReason.WARM_UP: "after the warm-up",
    KeepReason.BEST: "best of its run",
    KeepReason.LAST: "one of the latest",
    KeepReason.EVERY: "every Nth step",
    KeepReason.MARKED: "marked to be kept",
    KeepReason.EXPORTED: "exported",
    KeepReason.EVALUATED: "evaluated",
    KeepReason.STUDIED: "used by a study",
    KeepReason.BRANCHED: "another run starts from it",
    KeepReason.PLAYING: "in use right now",
    KeepReason.RESUME: "its run resumes from it",
}


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

    @property
    def stage(self) -> str: ...
    @property
    def step(self) -> int: ...
    @property
    def is_best(self) -> bool: ...
    @property
    def is_kept(self) -> bool: ...
    @property
    def pruned_at(self) -> datetime | None: ...


def keep_reasons(of_run: Sequence[SavedCheckpoint], rule: KeepRule) -> list[list[KeepReason]]:
    """For each checkpoint of one run, the reasons within the run; empty if the rule does not keep it."""
    there = sorted(saved.step for saved in of_run if saved.stage == Stage.GRPO and saved.pruned_at is None)
    last = set(there[-rule.last :]) if rule.last else set()
    return [list(_reasons(saved, rule, last)) for saved in of_run]


def _reasons(saved: SavedCheckpoint, rule: KeepRule, last: set[int]) -> Iterable[KeepReason]:
    if saved.is_kept:
        yield KeepReason.MARKED
    if saved.is_best:
        yield KeepReason.BEST
    match saved.stage:
        case Stage.UNTRAINED:
            yield KeepReason.UNTRAINED
        case Stage.SFT:
            yield KeepReason.WARM_UP
        case _:
            if saved.step in last:
                yield KeepReason.LAST
            if rule.every and saved.step % rule.every == 0:
                yield KeepReason.EVERY
