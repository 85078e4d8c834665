"""Which checkpoints of a training run keep their weights, and why. Without a reason the weights may be pruned."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from backend.domain.training.configuration import CheckpointChoice, Stage


class KeepReason(StrEnum):
    """Why a checkpoint keeps its weights."""

    UNTRAINED = "untrained"
    """Where the run began: results are compared with it."""
    WARM_UP = "warm_up"
    """After SFT: GRPO starts anew from it."""
    BEST = "best"
    """Highest held-out reward of its run."""
    LAST = "last"
    """One of the last ones."""
    EVERY = "every"
    """One of every so many steps."""
    MARKED = "marked"
    """A person wants it kept."""
    EXPORTED = "exported"
    """An export was made of it."""
    EVALUATED = "evaluated"
    """An evaluation was played with it."""
    STUDIED = "studied"
    """A search for an onset or an effort score is about it."""
    BRANCHED = "branched"
    """Another training run started from it."""
    PLAYING = "playing"
    """Something that is under way plays with it."""
    RESUME = "resume"
    """The run is not finished and goes on from it."""

    @property
    def is_binding(self) -> bool:
        """Nobody prunes it while this holds; what only the rule keeps may be pruned by hand."""
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
    KeepReason.LAST: "one of the last",
    KeepReason.EVERY: "one of every so many steps",
    KeepReason.MARKED: "marked to be kept",
    KeepReason.EXPORTED: "exported",
    KeepReason.EVALUATED: "evaluated",
    KeepReason.STUDIED: "a study is about it",
    KeepReason.BRANCHED: "another run starts from it",
    KeepReason.PLAYING: "in use right now",
    KeepReason.RESUME: "its run goes on from it",
}


@dataclass(frozen=True, slots=True)
class KeepRule:
    """How many of a run's GRPO checkpoints keep their weights. The best, the untrained and the warmed-up always do."""

    last: int = 5
    every: int = 0
    """Steps; 0: none for this reason."""

    @classmethod
    def of(cls, choice: CheckpointChoice) -> "KeepRule":
        return cls(choice.keep_last, choice.keep_every)

    @property
    def words(self) -> str:
        every = f" and every {self.every:,} steps" if self.every else ""
        return f"the best, the last {self.last:,}{every}"


class Saved(Protocol):
    """A checkpoint, as far as the rule looks at it."""

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


def keep_reasons(of_run: Sequence[Saved], rule: KeepRule) -> list[list[KeepReason]]:
    """For each checkpoint of one run the reasons that lie in the run itself; an empty list: the rule lets it go."""
    there = sorted(saved.step for saved in of_run if saved.stage == Stage.GRPO and saved.pruned_at is None)
    last = set(there[-rule.last :]) if rule.last else set()
    return [list(_reasons(saved, rule, last)) for saved in of_run]


def _reasons(saved: Saved, rule: KeepRule, last: set[int]) -> Iterable[KeepReason]:
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
