"""Which levels of one environment are played: a fixed mix, or a window that climbs (RLVE, arXiv:2511.07317)."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from backend.domain.training.curriculum import CurriculumChoice
from workers.training.planning.turns import Turns


@dataclass(frozen=True, slots=True)
class Outcome:
    """One completed rollout, as far as a curriculum looks at it."""

    level: int
    succeeded: bool


class Levels(Protocol):
    """Decides about the level of each task of one environment."""

    def next(self) -> int: ...

    def learn(self, outcomes: Iterable[Outcome]) -> dict[str, float]:
        """After a step. Returns the points of its curves, of what the step was played with."""
        ...

    @property
    def state(self) -> dict[str, Any]:
        """All that has to be kept, as JSON."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None: ...


class FixedLevels:
    """The same mix in every step."""

    def __init__(self, shares: Sequence[float]) -> None:
        self._turns = Turns(shares)

    def next(self) -> int:
        return self._turns.next()

    def learn(self, outcomes: Iterable[Outcome]) -> dict[str, float]:
        return {}

    @property
    def state(self) -> dict[str, Any]:
        return {"credit": self._turns.credit}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._turns = Turns(self._turns.shares, state["credit"])


_MOST_DOUBLINGS = 6


class AdaptiveLevels:
    """A window of levels. Its top rises when it is mastered; it falls back when success collapses there or beneath.

    A level that it fell from is tried again after `window` new episodes, after twice as many the next time, and so on:
    where it stays hopeless, half of all steps would teach nothing.
    """

    def __init__(self, choice: CurriculumChoice, count: int) -> None:
        self._choice, self._highest = choice, count - 1
        self._recent: dict[int, deque[bool]] = {}
        self._falls: dict[int, int] = {}
        """From a level, until it is mastered."""
        self._stand_at(min(choice.start, self._highest))

    @property
    def low(self) -> int:
        return max(0, self.high - self._choice.width + 1)

    def next(self) -> int:
        return self.low + self._turns.next()

    def learn(self, outcomes: Iterable[Outcome]) -> dict[str, float]:
        for outcome in outcomes:
            self._seen(outcome.level).append(outcome.succeeded)
            self._played += outcome.level == self.high
        points = {"low": float(self.low), "high": float(self.high)}
        if seen := self._recent.get(self.high):
            points["success"] = sum(seen) / len(seen)
        self._judge()
        return points

    def _judge(self) -> None:
        """At most one move a step."""
        top, beneath = self._success(self.high), self._success(self.high - 1)
        collapse = self._choice.collapse
        if self.high > 0 and any(success is not None and success < collapse for success in (top, beneath)):
            self._falls[self.high] = self._falls.get(self.high, 0) + 1
            self._stand_at(self.high - 1)
        elif self.high < self._highest and top is not None and top >= self._choice.mastery and self._is_time():
            self._falls.pop(self.high, None)
            self._stand_at(self.high + 1)

    def _is_time(self) -> bool:
        """For the level above, after what happened there."""
        falls = self._falls.get(self.high + 1, 0)
        return self._played >= self._choice.window << min(max(0, falls - 1), _MOST_DOUBLINGS)

    def _stand_at(self, high: int, credit: Sequence[float] | None = None) -> None:
        """Whether the new top is mastered is asked of new episodes only."""
        self.high = high
        self._played = 0
        self._recent = {level: seen for level, seen in self._recent.items() if self.low <= level < high}
        self._turns = Turns(self._shares(high - self.low), credit)

    def _shares(self, beneath: int) -> list[float]:
        """Of the levels beneath the top one, and of the top one."""
        if not beneath:
            return [1.0]
        lower = self._choice.lower
        return [*[lower / beneath] * beneath, 1.0 - lower]

    def _success(self, level: int) -> float | None:
        """Of the last episodes of a level; None while they are too few, or the level is below the window."""
        seen = self._recent.get(level, ())
        return sum(seen) / len(seen) if len(seen) == self._choice.window else None

    def _seen(self, level: int) -> deque[bool]:
        return self._recent.setdefault(level, deque(maxlen=self._choice.window))

    @property
    def state(self) -> dict[str, Any]:
        recent = {str(level): "".join("01"[each] for each in seen) for level, seen in self._recent.items()}
        falls = {str(level): count for level, count in self._falls.items()}
        return {
            "high": self.high,
            "credit": self._turns.credit,
            "recent": recent,
            "played": self._played,
            "falls": falls,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._stand_at(state["high"], state["credit"])
        self._played = state["played"]
        self._falls = {int(level): count for level, count in state["falls"].items()}
        self._recent = {
            int(level): deque((each == "1" for each in seen), maxlen=self._choice.window)
            for level, seen in state["recent"].items()
        }
