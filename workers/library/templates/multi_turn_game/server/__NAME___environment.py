"""A treasure hunt on a line of fields. Replace it with your game."""

import random
from typing import Any
from uuid import uuid4

from openenv.core.env_server.types import State

from .rewards import RewardedEnvironment, column

try:
    from ..models import __CLASS__Action, __CLASS__Observation
except ImportError:  # run from the package's folder
    from models import __CLASS__Action, __CLASS__Observation

FIELDS_BY_LEVEL = (9, 19)
MAX_TURNS = 16


class __CLASS__Environment(RewardedEnvironment):
    """The position of the treasure is a function of the seed: the same task is identical in every run."""

    def __init__(self) -> None:
        super().__init__()
        self.reset(seed=0)

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        split: str = "train",
        level: int = 0,
        index: int = 0,
        **kwargs: Any,
    ) -> __CLASS__Observation:
        self._seed = random.randrange(2**31) if seed is None else seed
        self._episode_id = episode_id or str(uuid4())
        self._fields = FIELDS_BY_LEVEL[level]
        self._place = self._start = (self._fields + 1) // 2
        others = [place for place in range(1, self._fields + 1) if place != self._start]
        self._treasure = random.Random(self._seed).choice(others)
        self._turns = 0
        self._outcome: str | None = None
        self.begin_rewards()
        return self._observe(f"You are on field {self._place} of {self._fields}.")

    def step(self, action: __CLASS__Action, timeout_s: float | None = None, **kwargs: Any) -> __CLASS__Observation:
        if self._outcome:
            raise RuntimeError("the episode has ended: call reset first")
        self._turns += 1
        message = self._act(action.deed)
        if self._outcome is None and self._turns >= MAX_TURNS:
            self._outcome, message = "late", "Night falls."
        return self.rewarded(self._observe(message))

    @column
    def found(self) -> float:
        """What really matters."""
        return 1.0 if self._outcome == "found" else 0.0

    @column
    def closer(self) -> float:
        """Share of the distance covered. Moving back and forth gains nothing, because only the last value counts."""
        return max(0.0, 1.0 - self._distance(self._place) / self._distance(self._start))

    @property
    def state(self) -> State:
        """Never shown to a policy. `gold` is the next reply of a perfect policy: the checks play it."""
        scripts = {} if self._outcome else {"gold": f"<do>{self._best_deed()}</do>", "wrong": "<do>dig</do>"}
        return State(episode_id=self._episode_id, step_count=self._turns, treasure=self._treasure, scripts=scripts)

    def _act(self, deed: str) -> str:
        if deed not in self._legal_deeds():
            return "That is not possible."
        if deed == "dig":
            self._outcome = "found" if self._place == self._treasure else "missed"
            return "You found it." if self._outcome == "found" else "Nothing here."
        before = self._distance(self._place)
        self._place += 1 if deed == "right" else -1
        return "Warmer." if self._distance(self._place) < before else "Colder."

    def _best_deed(self) -> str:
        if self._place == self._treasure:
            return "dig"
        return "right" if self._place < self._treasure else "left"

    def _distance(self, place: int) -> int:
        return abs(place - self._treasure)

    def _legal_deeds(self) -> list[str]:
        deeds = {"left": self._place > 1, "right": self._place < self._fields, "dig": True}
        return [] if self._outcome else [deed for deed, is_possible in deeds.items() if is_possible]

    def _observe(self, message: str) -> __CLASS__Observation:
        return __CLASS__Observation(
            message=message, place=self._place, legal_deeds=self._legal_deeds(), done=self._outcome is not None
        )
