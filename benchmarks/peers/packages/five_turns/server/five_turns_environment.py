"""A game of five moves, any of which will do."""

from typing import Any

from models import FiveTurnsAction, FiveTurnsObservation
from openenv.core.env_server.types import State

from .rewards import RewardedEnvironment, column

MOVES = 5


class FiveTurnsEnvironment(RewardedEnvironment):
    """The same work as the verifiers package of this comparison."""

    def reset(self, seed: int | None = None, index: int = 0, **kwargs: Any) -> FiveTurnsObservation:
        self._moves = 0
        self.begin_rewards()
        return FiveTurnsObservation(text=f"game {index}: your move")

    def step(self, action: FiveTurnsAction, timeout_s: float | None = None, **kwargs: Any) -> FiveTurnsObservation:
        self._moves += 1
        text = f"turn {self._moves}: your move"
        return self.rewarded(FiveTurnsObservation(text=text, done=self._moves == MOVES))

    @column
    def moves(self) -> float:
        return self._moves / MOVES

    @property
    def state(self) -> State:
        return State()
