"""Guess a number from 1 to 100 in ten attempts."""

import random
from typing import Any
from uuid import uuid4

from openenv.core.env_server.types import State

from .rewards import RewardedEnvironment, column

try:
    from ..models import NumberGuessAction, NumberGuessObservation
except ImportError:  # run from the package's folder
    from models import NumberGuessAction, NumberGuessObservation

HIGHEST = 100
ATTEMPTS = 10


class NumberGuessEnvironment(RewardedEnvironment):
    """The number is a function of the seed."""

    def __init__(self) -> None:
        super().__init__()
        self.reset(seed=0)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> NumberGuessObservation:
        self._seed = random.randrange(2**31) if seed is None else seed
        self._number = random.Random(f"number:{self._seed}").randint(1, HIGHEST)
        self._episode_id = episode_id or str(uuid4())
        self._low, self._high = 1, HIGHEST
        self._attempts = 0
        self._is_consistent = False
        self._outcome: str | None = None
        self.begin_rewards()
        return self._observe("Guess.")

    def step(self, action: NumberGuessAction, timeout_s: float | None = None, **kwargs: Any) -> NumberGuessObservation:
        if self._outcome:
            raise RuntimeError("the game has ended: call reset first")
        self._attempts += 1
        self._is_consistent = self._low <= action.guess <= self._high
        message = self._answer(action.guess)
        if self._outcome is None and self._attempts >= ATTEMPTS:
            self._outcome, message = "lost", f"Out of attempts. It was {self._number}."
        return self.rewarded(self._observe(message))

    @column
    def win(self) -> float:
        return 1.0 if self._outcome == "win" else 0.0

    @column
    def consistent(self) -> float:
        """Counted over all ten attempts, so that stopping early gains nothing; a win keeps its unused attempts."""
        saved = ATTEMPTS - self._attempts if self._outcome == "win" else 0
        return (self._is_consistent + saved) / ATTEMPTS

    @property
    def state(self) -> State:
        """Holds the number: never shown to a policy."""
        return State(
            episode_id=self._episode_id,
            step_count=self._attempts,
            number=self._number,
            answer=str(self._number),
            outcome=self._outcome,
            scripts=self._scripts(),
        )

    def _answer(self, guess: int) -> str:
        if guess == self._number:
            self._outcome = "win"
            return "Correct."
        if not 1 <= guess <= HIGHEST:
            return f"Not from 1 to {HIGHEST}."
        if guess < self._number:
            self._low = max(self._low, guess + 1)
            return "Higher."
        self._high = min(self._high, guess - 1)
        return "Lower."

    def _scripts(self) -> dict[str, str]:
        """gold halves the remaining range; teacher guesses in it; partial never says the number; wrong is outside."""
        if self._outcome:
            return {}
        chance = random.Random(f"teacher:{self._seed}:{self._attempts}")
        guesses = {
            "gold": (self._low + self._high) // 2,
            "teacher": chance.randint(self._low, self._high),
            "partial": self._low if self._low < self._number else self._high,
            "wrong": HIGHEST + 1,
        }
        return {script: f"<guess>{guess}</guess>" for script, guess in guesses.items()}

    def _observe(self, message: str) -> NumberGuessObservation:
        return NumberGuessObservation(
            message=message, attempts_left=ATTEMPTS - self._attempts, done=self._outcome is not None
        )
