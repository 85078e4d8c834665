"""A text and a number, graded by the answer's likeness."""

from difflib import SequenceMatcher
from typing import Any

from models import OneTurnAction, OneTurnObservation
from openenv.core.env_server.types import State

from .rewards import RewardedEnvironment, column


class OneTurnEnvironment(RewardedEnvironment):
    """The same work as the verifiers package of this comparison."""

    def reset(self, seed: int | None = None, index: int = 0, **kwargs: Any) -> OneTurnObservation:
        self._index = index
        self.begin_rewards()
        return OneTurnObservation(text=f"abcde {index}")

    def step(self, action: OneTurnAction, timeout_s: float | None = None, **kwargs: Any) -> OneTurnObservation:
        self._answer = action.text
        return self.rewarded(OneTurnObservation(done=True))

    @column
    def lcs(self) -> float:
        return SequenceMatcher(None, self._answer, f"{self._index} edcba").ratio()

    @property
    def state(self) -> State:
        return State()
