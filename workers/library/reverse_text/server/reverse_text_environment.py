"""Write a text backwards, in one turn."""

import random
from typing import Any
from uuid import uuid4

from openenv.core.env_server.types import State

from .rewards import RewardedEnvironment, column
from .words import make_text

try:
    from ..models import ReverseTextAction, ReverseTextObservation
except ImportError:  # run from the package's folder
    from models import ReverseTextAction, ReverseTextObservation

WORDS_BY_LEVEL = (2, 3, 5, 8)


class ReverseTextEnvironment(RewardedEnvironment):
    """The text is a function of split, level and seed."""

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
    ) -> ReverseTextObservation:
        if not 0 <= level < len(WORDS_BY_LEVEL):
            raise ValueError(f"level {level}: there are 0 to {len(WORDS_BY_LEVEL) - 1}")
        self._seed = random.randrange(2**31) if seed is None else seed
        self._text = make_text(self._seed, split, WORDS_BY_LEVEL[level])
        self._episode_id = episode_id or str(uuid4())
        self._answer: str | None = None
        self.begin_rewards()
        return ReverseTextObservation(text=self._text)

    def step(self, action: ReverseTextAction, timeout_s: float | None = None, **kwargs: Any) -> ReverseTextObservation:
        if self._answer is not None:
            raise RuntimeError("the episode has ended: call reset first")
        self._answer = action.text
        message = f"{self.similarity():.0%} of the way from a copy to the reversed text."
        return self.rewarded(ReverseTextObservation(text=self._text, message=message, done=True))

    @column
    def similarity(self) -> float:
        """0 for a copy (which shares much with its own reverse) or worse, 1 for the reversed text."""
        target = self._text[::-1]
        copied = shared_part(self._text, target)
        return max(0.0, (shared_part(self._answer or "", target) - copied) / (1.0 - copied))

    @column
    def exact(self) -> float:
        return 1.0 if self._answer == self._text[::-1] else 0.0

    @property
    def state(self) -> State:
        """Holds the answer: never shown to a policy."""
        return State(
            episode_id=self._episode_id,
            step_count=int(self._answer is not None),
            answer=self._text[::-1],
            scripts=self._scripts(),
        )

    def _scripts(self) -> dict[str, str]:
        """gold reverses; teacher then loses or doubles some letters; partial omits a quarter; wrong copies."""
        if self._answer is not None:
            return {}
        chance = random.Random(f"teacher:{self._seed}")
        target = self._text[::-1]
        blurred = "".join(letter * chance.choices((0, 1, 2), (1, 8, 1))[0] for letter in target)
        part = target[: -(len(target) // 4)]
        texts = {"gold": target, "teacher": blurred, "partial": part, "wrong": self._text}
        return {script: f"<reversed>{text}</reversed>" for script, text in texts.items()}


def shared_part(answer: str, target: str) -> float:
    """Longest common subsequence as a share of the longer text."""
    if len(answer) > 10 * len(target):
        return 0.0
    row = [0] * (len(target) + 1)
    for letter in answer:
        diagonal = 0
        for index, wanted in enumerate(target, 1):
            above = row[index]
            row[index] = diagonal + 1 if letter == wanted else max(above, row[index - 1])
            diagonal = above
    return row[-1] / max(len(answer), len(target))
