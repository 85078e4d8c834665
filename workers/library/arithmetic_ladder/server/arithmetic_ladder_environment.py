"""Twenty levels of arithmetic, one problem an episode."""

import random
from fractions import Fraction
from typing import Any
from uuid import uuid4

from openenv.core.env_server.types import State

from .ladder import LEVELS, make_problem, read, write
from .rewards import RewardedEnvironment, column

try:
    from ..models import ArithmeticLadderAction, ArithmeticLadderObservation
except ImportError:  # run from the package's folder
    from models import ArithmeticLadderAction, ArithmeticLadderObservation

NEAR = Fraction(1, 20)
"""An answer off by a larger share than this is not near."""


class ArithmeticLadderEnvironment(RewardedEnvironment):
    """The problem is a function of split, level and seed."""

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
    ) -> ArithmeticLadderObservation:
        if not 0 <= level < LEVELS:
            raise ValueError(f"level {level}: there are 0 to {LEVELS - 1}")
        self._seed = random.randrange(2**31) if seed is None else seed
        self._problem = make_problem(self._seed, split, level)
        self._episode_id = episode_id or str(uuid4())
        self._answer: str | None = None
        self.begin_rewards()
        return self._observe()

    def step(
        self, action: ArithmeticLadderAction, timeout_s: float | None = None, **kwargs: Any
    ) -> ArithmeticLadderObservation:
        if self._answer is not None:
            raise RuntimeError("the episode has ended: call reset first")
        self._answer = action.answer
        return self.rewarded(self._observe("Right." if self.correct() else "Wrong."))

    @column
    def correct(self) -> float:
        """Equal in value: 6/8 and 0.75 are 3/4."""
        return 1.0 if self._given() == self._problem.answer else 0.0

    @column
    def near(self) -> float:
        """A slope to learn on: 1 for the answer, 0 for one that is off by a twentieth of it."""
        given, wanted = self._given(), self._problem.answer
        if given is None:
            return 0.0
        return float(max(Fraction(0), 1 - abs(given - wanted) / (NEAR * max(abs(wanted), 1))))

    @column
    def ending(self) -> float:
        """The last digit, or of a fraction the denominator, is right: what carries and shortcuts get wrong."""
        given, wanted = self._given(), self._problem.answer
        if given is None or given.denominator != wanted.denominator:
            return 0.0
        is_whole = wanted.denominator == 1
        return 1.0 if not is_whole or abs(given.numerator) % 10 == abs(wanted.numerator) % 10 else 0.0

    @property
    def state(self) -> State:
        """Holds the answer: never shown to a policy."""
        return State(
            episode_id=self._episode_id,
            step_count=int(self._answer is not None),
            answer=write(self._problem.answer),
            scripts=self._scripts(),
        )

    def _given(self) -> Fraction | None:
        return read(self._answer or "")

    def _scripts(self) -> dict[str, str]:
        """variants write gold's number otherwise; partial is off by ten; wrong is far off; teacher slips at times."""
        if self._answer is not None:
            return {}
        right = self._problem.answer
        chance = random.Random(f"teacher:{self._seed}")
        away = 1 if right.denominator > 1 else 10
        near = right + (away if right >= 0 else -away)
        answers = {
            "gold": write(right),
            "teacher": write(near if chance.random() < 0.4 else right),
            "variant_1": _other_way(right),
            "partial": write(near),
            "wrong": str(3 * abs(right.numerator) + 1001),
        }
        scripts = {script: f"<answer>{answer}</answer>" for script, answer in answers.items()}
        return scripts | {"variant_2": f"Step by step, this gives: <answer> {write(right)} </answer>"}

    def _observe(self, message: str = "") -> ArithmeticLadderObservation:
        return ArithmeticLadderObservation(
            question=f"Compute {self._problem.text}.", message=message, done=self._answer is not None
        )


def _other_way(number: Fraction) -> str:
    """A fraction not in lowest terms; a whole number with its thousands set apart and a decimal point."""
    if number.denominator > 1:
        return f"{2 * number.numerator}/{2 * number.denominator}"
    return f"{number.numerator:,}.0"
