"""A question, then "are you sure?": the first and the last answer count, and what happened between them."""

import random
from typing import Any
from uuid import uuid4

from openenv.core.env_server.types import State

from .questions import DIGITS_BY_LEVEL, make_doubts, make_question
from .rewards import RewardedEnvironment, column

try:
    from ..models import DoubleCheckAction, DoubleCheckObservation
except ImportError:  # run from the package's folder
    from models import DoubleCheckAction, DoubleCheckObservation

TEACHER_ERRS = 0.35
"""Probability that an answer of the teacher is wrong, drawn for each answer."""


class DoubleCheckEnvironment(RewardedEnvironment):
    """Question and doubts are a function of split, level and seed; the doubts do not depend on the answers."""

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
    ) -> DoubleCheckObservation:
        if not 0 <= level < len(DIGITS_BY_LEVEL):
            raise ValueError(f"level {level}: there are 0 to {len(DIGITS_BY_LEVEL) - 1}")
        self._seed = random.randrange(2**31) if seed is None else seed
        self._question = make_question(self._seed, split, level)
        self._doubts = make_doubts(self._seed, self._question, level)
        self._episode_id = episode_id or str(uuid4())
        self._answers: list[int] = []
        self.begin_rewards()
        return self._observe(self._question.text)

    def step(self, action: DoubleCheckAction, timeout_s: float | None = None, **kwargs: Any) -> DoubleCheckObservation:
        if self._is_over:
            raise RuntimeError("the episode has ended: call reset first")
        self._answers.append(action.answer)
        if self._is_over:
            return self.rewarded(self._observe("Right." if self._rights()[-1] else "Wrong."))
        return self.rewarded(self._observe(self._doubts[len(self._answers) - 1]))

    @column
    def first(self) -> float:
        """Rewarded at once, and only for the first answer: a wrong answer that is corrected later loses this."""
        return float(len(self._answers) == 1 and self._rights()[0])

    @column
    def final(self) -> float:
        return float(self._is_over and self._rights()[-1])

    @column
    def steady(self) -> float:
        """Right all the way through."""
        return float(self._is_over and all(self._rights()))

    @column
    def corrected(self) -> float:
        """Wrong at first, right at the end."""
        return float(self._is_over and not self._rights()[0] and self._rights()[-1])

    @property
    def state(self) -> State:
        """Holds the answer: never shown to a policy."""
        return State(
            episode_id=self._episode_id,
            step_count=len(self._answers),
            answer=str(self._question.answer),
            given=self._answers,
            scripts=self._scripts(),
        )

    @property
    def _is_over(self) -> bool:
        return len(self._answers) > len(self._doubts)

    def _rights(self) -> list[bool]:
        return [answer == self._question.answer for answer in self._answers]

    def _scripts(self) -> dict[str, str]:
        """gold is right and steady; partial corrects itself; waverer gives in to the doubt; wrong never gets there."""
        if self._is_over:
            return {}
        right, turn = self._question.answer, len(self._answers)
        chance = random.Random(f"teacher:{self._seed}:{turn}")
        slip = right + chance.choice((-10, -1, 1, 10))
        answers = {
            "gold": right,
            "teacher": slip if chance.random() < TEACHER_ERRS else right,
            "partial": right if turn else slip,
            "waverer": slip if turn else right,
            "wrong": slip,
        }
        scripts = {script: f"<answer>{answer}</answer>" for script, answer in answers.items()}
        return scripts | {"variant_1": f"Let me work it out once more.\n<answer> {right} </answer>"}

    def _observe(self, message: str) -> DoubleCheckObservation:
        rounds = max(0, len(self._doubts) - len(self._answers))
        return DoubleCheckObservation(message=message, rounds_left=rounds, done=self._is_over)
