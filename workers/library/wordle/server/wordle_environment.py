"""Find a word of five letters in six attempts."""

import random
from typing import Any
from uuid import uuid4

from openenv.core.env_server.types import State

from .game import (
    best_guess,
    candidates,
    far_guess,
    found_places,
    hidden_places,
    in_words,
    known_letters,
    mark,
    near_guess,
    read_guess,
)
from .rewards import RewardedEnvironment, column
from .words import SHOWN_BY_LEVEL, make_task

try:
    from ..models import WordleAction, WordleObservation
except ImportError:  # run from the package's folder
    from models import WordleAction, WordleObservation

ATTEMPTS = 6


class WordleEnvironment(RewardedEnvironment):
    """The word, and what of it is shown, are a function of split, level and seed."""

    def __init__(self) -> None:
        super().__init__()
        self.reset(seed=0)

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        split: str = "train",
        level: int = 0,
        **kwargs: Any,
    ) -> WordleObservation:
        if not 0 <= level < len(SHOWN_BY_LEVEL):
            raise ValueError(f"level {level}: there are 0 to {len(SHOWN_BY_LEVEL) - 1}")
        self._seed = random.randrange(2**31) if seed is None else seed
        self._word, self._shown = make_task(self._seed, split, level)
        self._episode_id = episode_id or str(uuid4())
        self._attempts = 0
        self._guesses: list[str] = []
        self._is_repeated = False
        self._outcome: str | None = None
        self.begin_rewards()
        return self._observe(f"The word: {' '.join(self._shown)}")

    def step(self, action: WordleAction, timeout_s: float | None = None, **kwargs: Any) -> WordleObservation:
        if self._outcome:
            raise RuntimeError("the game has ended: call reset first")
        self._attempts += 1
        message = self._answer(read_guess(action.guess))
        if self._outcome is None and self._attempts >= ATTEMPTS:
            self._outcome, message = "lost", f"{message} Out of attempts: it was {self._word}."
        return self.rewarded(self._observe(message))

    @column
    def win(self) -> float:
        return 1.0 if self._outcome == "win" else 0.0

    @column
    def green(self) -> float:
        """A letter counts once: no guess is rewarded twice, and a win has all letters."""
        return len(found_places(self._word, self._shown, self._guesses)) / len(hidden_places(self._shown))

    @column
    def yellow(self) -> float:
        """A letter in its place counts here too, so that finding the place never costs."""
        return known_letters(self._word, self._shown, self._guesses) / len(hidden_places(self._shown))

    @column
    def repeat(self) -> float:
        return -1.0 / ATTEMPTS if self._is_repeated else 0.0

    @property
    def state(self) -> State:
        """Holds the word: never shown to a policy."""
        return State(
            episode_id=self._episode_id,
            step_count=self._attempts,
            answer=self._word,
            outcome=self._outcome,
            scripts=self._scripts(),
        )

    def _answer(self, guess: str | None) -> str:
        self._is_repeated = guess in self._guesses
        if guess is None:
            return "A guess is five letters."
        self._guesses.append(guess)
        if guess == self._word:
            self._outcome = "win"
            return "Correct."
        return f"{in_words(guess, mark(guess, self._word))}."

    def _scripts(self) -> dict[str, str]:
        """gold does not peek; partial comes near and never says the word; wrong stays far; teacher forgets colors."""
        if self._outcome:
            return {}
        chance = random.Random(f"teacher:{self._seed}:{self._attempts}")
        gold = best_guess(candidates(self._shown, self._guesses, self._word))
        remembered = [guess for guess in self._guesses if chance.random() < 0.6]
        guesses = {
            "gold": gold,
            "variant_1": f" {' '.join(gold.upper())} ",
            "teacher": chance.choice(candidates(self._shown, remembered, self._word)),
            "partial": near_guess(self._word, self._guesses),
            "wrong": far_guess(self._word, self._guesses),
        }
        return {script: f"<guess>{guess}</guess>" for script, guess in guesses.items()}

    def _observe(self, message: str) -> WordleObservation:
        return WordleObservation(
            message=message,
            shown=self._shown,
            attempts_left=ATTEMPTS - self._attempts,
            done=self._outcome is not None,
        )
